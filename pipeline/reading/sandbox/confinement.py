"""Confine a child for good, before it reads a file: Landlock for files, seccomp for system calls.

The kernel enforces both, also against code that a file brings into a native library. Where the kernel lacks one or
forbids it, the child does without; `active` tells what holds.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from pipeline.engine import linux, search_path

_NO_NEW_PRIVILEGES, _SECCOMP = "no new privileges", "seccomp"
_BESIDE_CODE = (
    *("/usr", "/lib", "/lib32", "/lib64", "/etc/fonts", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types"),
    *("/dev/null", "/dev/zero", "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo"),
    *("/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu"),
)
"""What libraries read, beside their code."""

# Landlock's rights, linux/landlock.h.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_DIR, _MAKE_FILE, _TRUNCATE, _IOCTL = 1 << 7, 1 << 8, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_READ = _READ_FILE | _READ_DIR
_WRITE = _READ | _WRITE_FILE | _TRUNCATE | _MAKE_DIR | _MAKE_FILE | _REMOVE_DIR | _REMOVE_FILE
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""The number of rights to files, from each version on."""
_NETWORK, _SCOPES = 0b11, 0b11  # binding and connecting TCP; abstract sockets and signals
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446

_ARCHITECTURES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""For each machine: the column of `_REFUSED`, the kernel's number of the architecture, the number of `seccomp`."""
_REFUSED = """
socket 41 198 socketpair 53 199 connect 42 203 accept 43 202 accept4 288 242 bind 49 200 listen 50 201 sendto 44 206
sendmsg 46 211 sendmmsg 307 269 recvmsg 47 212 recvmmsg 299 243
execve 59 221 execveat 322 281 fork 57 - vfork 58 - ptrace 101 117 kcmp 312 272
process_vm_readv 310 270 process_vm_writev 311 271 process_madvise 440 440
tkill 200 130 rt_sigqueueinfo 129 138 rt_tgsigqueueinfo 297 240
pidfd_open 434 434 pidfd_send_signal 424 424 pidfd_getfd 438 438
setpriority 141 140 ioprio_set 251 30 sched_setscheduler 144 119 sched_setparam 142 118 sched_setattr 314 274
mount 165 40 umount2 166 39 pivot_root 155 41 chroot 161 51 move_mount 429 429 open_tree 428 428 fsopen 430 430
fsconfig 431 431 fsmount 432 432 fspick 433 433 mount_setattr 442 442 setns 308 268 unshare 272 97
keyctl 250 219 add_key 248 217 request_key 249 218 bpf 321 280 perf_event_open 298 241 userfaultfd 323 282
io_uring_setup 425 425 io_uring_enter 426 426 io_uring_register 427 427 personality 135 92
init_module 175 105 finit_module 313 273 delete_module 176 106 kexec_load 246 104 kexec_file_load 320 294
open_by_handle_at 304 265 name_to_handle_at 303 264 fanotify_init 300 262 quotactl 179 60 acct 163 89
swapon 167 224 swapoff 168 225 reboot 169 142 syslog 103 116 sethostname 170 161 setdomainname 171 162
settimeofday 164 170 clock_settime 227 112 adjtimex 159 171 clock_adjtime 305 266 iopl 172 - ioperm 173 -
modify_ldt 154 - setuid 105 146 setgid 106 144 setreuid 113 145 setregid 114 143 setresuid 117 147 setresgid 119 149
setgroups 116 159 setfsuid 122 151 setfsgid 123 152 capset 126 91
chmod 90 - fchmod 91 52 fchmodat 268 53 fchmodat2 452 452 chown 92 - fchown 93 55 lchown 94 - fchownat 260 54
setxattr 188 5 lsetxattr 189 6 fsetxattr 190 7 removexattr 197 14 lremovexattr 198 15 fremovexattr 199 16
truncate 76 45 utime 132 - utimes 235 - futimesat 261 - utimensat 280 88 mknod 133 - mknodat 259 33
symlink 88 - symlinkat 266 36 link 86 - linkat 265 37
shmget 29 194 shmat 30 196 msgget 68 186 msgsnd 69 189 semget 64 190 mq_open 240 180
"""
"""System calls that fail with EPERM: name, and number on each architecture. Landlock has no rights for changes of
modes, owners and times, so these are refused to all files."""
_CLONE, _CLONE3, _KILL, _TGKILL, _FCNTL, _PRLIMIT = (56, 220), (435, 435), (62, 129), (234, 131), (72, 25), (302, 261)
_CLONE_THREAD = 0x10000
_SIGNALLING = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX send signals to any process
_X32 = 0x40000000
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # of BPF
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24  # places in `seccomp_data`

active: list[str] = []
"""What confines this process."""


def confine(reads: Sequence[str], writes: Sequence[str]) -> None:
    """Let this process read its code and `reads`, change files only in the folders and files `writes`, and neither use
    the network, start programs nor reach other processes. Call it once, while there is a single thread."""
    if not linux.IS_LINUX:
        return
    if linux.gain_no_privileges():
        active.append(_NO_NEW_PRIVILEGES)
        if version := _restrict_files(reads, writes):
            active.append(f"Landlock {version}")
        if _restrict_calls():
            active.append(_SECCOMP)
    if not linux.is_dumpable():
        active.append("not dumpable")


@cache
def code() -> tuple[str, ...]:
    """Return the paths of Python, its packages, Penstock's own package and what libraries read beside their code."""
    root = Path(search_path.ROOT)
    # A folder with our sources may hold keys, settings and data as well.
    sources = (root / "pyproject.toml").exists()
    packages = {entry for entry in sys.path if entry and not (sources and root.is_relative_to(entry))}
    paths = {
        sys.prefix,
        sys.base_prefix,
        *sysconfig.get_paths().values(),
        *packages,
        str(root / "pipeline"),
        *_BESIDE_CODE,
    }
    return tuple(sorted(path for path in paths if Path(path).exists()))


def _restrict_files(reads: Sequence[str], writes: Sequence[str]) -> int:
    """Let Landlock restrict this process; return the version used, 0 without Landlock."""
    version = linux.call(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return 0
    handled = (1 << max(count for since, count in _FILE_RIGHTS.items() if since <= version)) - 1
    attributes = struct.pack("QQQ", handled, _NETWORK, _SCOPES)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = linux.call(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return 0
    try:
        for path, rights in [(path, _READ) for path in (*code(), *reads)] + [(path, _WRITE) for path in writes]:
            with suppress(OSError):  # a missing file is missing, whatever the rights
                _allow(ruleset, path, rights & handled)
        # Libraries open it for writing to drop their output.
        _allow(ruleset, os.devnull, (_READ_FILE | _WRITE_FILE | _TRUNCATE) & handled)
        return version if linux.call(_RESTRICT_SELF, ruleset, 0) == 0 else 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        kept = rights if Path(path).is_dir() else rights & _OF_FILES
        linux.call(_ADD_RULE, ruleset, 1, struct.pack("=Qi", kept, place), 0)
    finally:
        os.close(place)


def _restrict_calls() -> bool:
    """Let seccomp filter the system calls of this process; return whether it does."""
    if platform.machine() not in _ARCHITECTURES or sys.maxsize < 2**32:
        return False
    column, architecture, seccomp = _ARCHITECTURES[platform.machine()]
    program = [struct.pack("HBBI", *step) for step in _filter(column, architecture)]
    steps = ctypes.create_string_buffer(b"".join(program))
    whole = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(steps))
    return linux.call(seccomp, 1, 1, whole) == 0  # a filter, for all threads


def _filter(column: int, architecture: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the steps of the filter: (operation, steps to skip if true, if false, value)."""
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, architecture
    yield _RETURN, 0, 0, _KILL_PROCESS
    yield _LOAD, 0, 0, _NUMBER
    yield _AT_LEAST, 0, 1, _X32
    yield refuse
    yield _EQUAL, 0, 1, _CLONE3[column]  # its flags are in memory, where a filter cannot look: libraries then use clone
    yield _RETURN, 0, 0, _ERRNO | errno.ENOSYS
    own = os.getpid()
    for call, place, operation, good in (
        (_CLONE, _FIRST, _ANY_BIT, (_CLONE_THREAD,)),
        (_KILL, _FIRST, _EQUAL, (own,)),
        (_TGKILL, _FIRST, _EQUAL, (own,)),
        (_PRLIMIT, _FIRST, _EQUAL, (0, own)),
    ):
        yield _EQUAL, 0, len(good) * 2 + 2, call[column]
        yield _LOAD, 0, 0, place
        for value in good:
            yield operation, 0, 1, value
            yield allow
        yield refuse
    yield _EQUAL, 0, len(_SIGNALLING) * 2 + 2, _FCNTL[column]
    yield _LOAD, 0, 0, _SECOND
    for value in _SIGNALLING:
        yield _EQUAL, 0, 1, value
        yield refuse
    yield allow
    for number in _REFUSED.split()[1 + column :: 3]:
        if number != "-":
            yield _EQUAL, 0, 1, int(number)
            yield refuse
    yield allow

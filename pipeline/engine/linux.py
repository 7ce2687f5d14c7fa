"""The system calls of Linux that Python does not offer. On other systems, they do nothing."""

import ctypes
import sys
from functools import cache

IS_LINUX = sys.platform == "linux"
_SET_DUMPABLE, _GET_DUMPABLE, _SET_NAME, _SET_NO_NEW_PRIVS = 4, 3, 15, 38


@cache
def library() -> ctypes.CDLL:
    """Return the C library of this process; `ctypes.get_errno` tells the error of a call."""
    return ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call with integers or pointers; return its result, -1 for an error."""
    words = [ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in arguments]
    return int(library().syscall(ctypes.c_long(number), *words))


def _prctl(option: int, value: int | bytes = 0) -> int:
    if not IS_LINUX:
        return -1
    word = ctypes.c_ulong(value) if isinstance(value, int) else ctypes.c_char_p(value)
    zero = ctypes.c_ulong(0)
    return int(library().prctl(option, word, zero, zero, zero))


def set_dumpable(dumpable: bool) -> None:  # as prctl's own argument
    """Allow or forbid the other processes of this user to read this process's memory, environment and open files. A
    fork keeps this, a new program starts allowed."""
    _prctl(_SET_DUMPABLE, int(dumpable))


def is_dumpable() -> bool:
    return _prctl(_GET_DUMPABLE) != 0


def gain_no_privileges() -> bool:
    """Make sure that no program of this process gains privileges; return whether that worked. It cannot be undone."""
    return _prctl(_SET_NO_NEW_PRIVS, 1) == 0


def set_name(name: str) -> None:
    """Set the name that `ps` and `top` show for this process; they cut it to 15 bytes."""
    _prctl(_SET_NAME, name.encode())

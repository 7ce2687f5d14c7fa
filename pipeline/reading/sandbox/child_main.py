"""The child process that reads for `child`: `python -m pipeline.reading.sandbox.child_main`.

It receives one task at a time on standard input and answers on standard output. It ends with the process that started
it, or after `IDLE_S` without a task. `tasks` lists its tasks.

Its first task confines it for good: it can read its code and the files of that task, write where that task writes, and
neither connect to other machines nor start programs. So all its tasks are about one document.
"""

import contextlib
import fcntl
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pipeline.engine import linux, privacy
from pipeline.engine.errors import UnitError, told
from pipeline.reading.files.user_file import passes
from pipeline.reading.sandbox import confinement
from pipeline.reading.sandbox.child_process import LIBRARIES
from pipeline.reading.sandbox.limits import Limits, Task, refused
from pipeline.reading.sandbox.messages import Buffer, pack
from pipeline.reading.sandbox.tasks import TASKS

IDLE_S = 60.0
MAX_TASK_BYTES = 3_000_000
"""A task may contain a text of 400,000 characters."""
_SLACK_BYTES = 2**30  # Address space that threads and memory pools reserve and never use.
_GROWTH_BYTES = 10**9  # of a process between its tasks; a larger one gets no further task
_PROGRESS_EVERY_S = 0.2
_FORBIDDEN = frozenset(
    {
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.sendmsg",
        "socket.sendto",
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.fork",
        "os.forkpty",
        "os.kill",
        "os.killpg",
    }
)


def main(lifeline: int) -> None:
    """Answer tasks from standard input until it closes, the parent ends, or no task arrives for `IDLE_S`.

    `lifeline`: the reading end of an unused pipe, which closes when the parent ends.
    """
    privacy.begin()
    replies = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Keep libraries' output out of the answers.
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(stop, signal.SIG_IGN)  # The parent handles them and ends this process.
    _end_with(lifeline)
    _restrict()
    imported = frozenset(sys.modules)
    confined = False
    buffer = Buffer(MAX_TASK_BYTES)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    with contextlib.suppress(BrokenPipeError):
        while poll.poll(IDLE_S * 1000) and (data := os.read(0, 65536)):
            buffer.feed(data)
            while (task := buffer.next()) is not None:
                if not confined:
                    _confine(task)
                    confined = True
                _send(replies, {"started": True})
                answer = _answer(task, replies)
                loaded = [name for name in LIBRARIES if name in sys.modules and name not in imported]
                _send(replies, answer | {"loaded": loaded})


def _end_with(lifeline: int) -> None:
    """Let the kernel end this process when the parent closes its end, even while a library holds Python's lock."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _restrict() -> None:
    """Forbid Python code to connect to other machines, start programs and signal processes, and let the system kill
    this process first if memory runs out."""

    def refuse(event: str, _: object) -> None:
        if event in _FORBIDDEN:
            raise PermissionError(f"{event} is not allowed while files are read")

    sys.addaudithook(refuse)
    linux.set_dumpable(True)  # or only an administrator may write to the next file
    with contextlib.suppress(OSError):  # Linux: if memory runs out, this process goes first.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    linux.set_dumpable(False)


def _confine(request: dict[str, Any]) -> None:
    """Give this process its hard limits, and confine it to the files of its first task."""
    limits = Limits(**request["limits"])
    _limit(resource.RLIMIT_CORE, 0, 0)
    _limit(resource.RLIMIT_FSIZE, limits.max_written_bytes, limits.max_written_bytes)
    spent = int(_processor_s() + limits.most_processor_s)
    _limit(resource.RLIMIT_CPU, spent + 5, spent + 10)
    if (mapped := _mapped_bytes()) is not None:
        most = mapped + _GROWTH_BYTES + limits.memory_mb * 10**6 + _SLACK_BYTES
        _limit(resource.RLIMIT_AS, most, most)
    confinement.confine(request["reads"], request["writes"])


def _limit(resource_id: int, soft: int, hard: int | None = None) -> None:
    """Set a soft limit, and a hard one unless `hard` is None; neither exceeds the hard limit before."""
    with contextlib.suppress(OSError, ValueError):
        before = resource.getrlimit(resource_id)[1]
        hard = before if hard is None else hard if before == resource.RLIM_INFINITY else min(hard, before)
        resource.setrlimit(resource_id, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _mapped_bytes() -> int | None:
    """Return the size of this process's address space; None where the system tells none, and enforces no limit."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    return None


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _answer(request: dict[str, Any], replies: int) -> dict[str, Any]:
    limits = Limits(**request["limits"])
    _limit_processor(limits)
    if (mapped := _mapped_bytes()) is not None:
        _limit(resource.RLIMIT_AS, mapped + limits.memory_mb * 10**6 + _SLACK_BYTES)
    reported_at = 0.0

    def progress(share: float) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= _PROGRESS_EVERY_S:
            reported_at = time.monotonic()
            _limit_processor(limits)
            _send(replies, {"progress": share})

    try:
        return TASKS[request["task"]](Task(request, limits, progress))
    except Exception as error:  # noqa: BLE001  # every failure needs an answer
        failure = _failure(error, request, limits)
        return {"error": str(failure), "kind": failure.kind.value, "code": failure.code}


def _limit_processor(limits: Limits) -> None:
    """Let the system end this process after the task's processor time, even if its parent cannot kill it."""
    _limit(resource.RLIMIT_CPU, int(_processor_s() + limits.processor_s) + 5)


def _failure(error: Exception, request: dict[str, Any], limits: Limits) -> UnitError:
    name = request["name"]
    if isinstance(error, UnitError):
        return error
    if isinstance(error, MemoryError):
        message = f"Reading {name} takes more than the allowed {limits.memory_mb} MB{request['advice']}."
        return refused(message, "too_large")
    if isinstance(error, RecursionError):
        return refused(f"{name} is nested too deeply to be read.", "unreadable")
    if isinstance(error, FileNotFoundError):
        return refused(f"{name} no longer exists.", "missing")
    if passes(error):
        return UnitError(f"{name} cannot be read at the moment: {told(error)}", code="io_error")
    return refused(f"{name} cannot be read: {type(error).__name__}: {told(error)[:300]}", "unreadable")


def _send(descriptor: int, message: dict[str, Any]) -> None:
    data = memoryview(pack(message))
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""The child process that reads for `child`: `python -m pipeline.reading.sandbox.child_main`.

It is given a task at a time on its standard input and answers on its standard output. It ends when the process that
started it has gone, and by itself when it has been idle for a while. It cannot connect to anything or start a program.
What it can do is the table of `tasks`.
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

from pipeline.engine import privacy
from pipeline.engine.errors import UnitError
from pipeline.reading.sandbox.limits import Limits, Task, refused
from pipeline.reading.sandbox.messages import Buffer, pack
from pipeline.reading.sandbox.tasks import TASKS

IDLE_S = 60.0
MAX_TASK_BYTES = 3_000_000
"""A text of 400,000 characters is part of a task."""
_SLACK_BYTES = 2**30  # Address space that threads and memory pools reserve and never use.
_MAX_FILE_BYTES = 64 * 2**20
_PROGRESS_EVERY_S = 0.2
_FORBIDDEN = frozenset(
    {
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.sendto",
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.fork",
        "os.forkpty",
    }
)


def main(lifeline: int) -> None:
    """`lifeline`: the reading end of a pipe into which nobody writes, and which closes when the parent ends."""
    privacy.begin()
    replies = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # What libraries print must not mix with the answers.
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(stop, signal.SIG_IGN)  # They are for the parent, which then ends this process.
    _end_with(lifeline)
    _restrict()
    buffer = Buffer(MAX_TASK_BYTES)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    with contextlib.suppress(BrokenPipeError):
        while poll.poll(IDLE_S * 1000) and (data := os.read(0, 65536)):
            buffer.feed(data)
            while (task := buffer.next()) is not None:
                _send(replies, {"started": True})
                _send(replies, _answer(task, replies))


def _end_with(lifeline: int) -> None:
    """Have the kernel end this process when the parent closes its end, even while a library holds on to Python."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _restrict() -> None:
    """Whatever a file makes a library do, it stays in this process."""

    def refuse(event: str, _: object) -> None:
        if event in _FORBIDDEN:
            raise PermissionError(f"{event} is not allowed while files are read")

    sys.addaudithook(refuse)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, _MAX_FILE_BYTES)
    with contextlib.suppress(OSError):  # Linux: if memory runs out, this process goes first.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _limit(what: int, value: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(what, (value, resource.getrlimit(what)[1]))


def _answer(asked: dict[str, Any], replies: int) -> dict[str, Any]:
    limits = Limits(**asked["limits"])
    _limit_processor(limits)
    with contextlib.suppress(OSError):  # Linux alone keeps to this limit, and says what is used.
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory_mb * 10**6 + _SLACK_BYTES)
    said_at = 0.0

    def progress(share: float) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _PROGRESS_EVERY_S:
            said_at = time.monotonic()
            _limit_processor(limits)
            _send(replies, {"progress": share})

    try:
        return TASKS[asked["task"]](Task(asked, limits, progress))
    except Exception as error:  # noqa: BLE001  # an answer, whatever happened
        failure = _failure(error, asked, limits)
        return {"error": str(failure), "kind": failure.kind.value, "code": failure.code}


def _limit_processor(limits: Limits) -> None:
    """So that this process ends even if its parent cannot kill it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + limits.timeout_s * max(1, limits.ocr_threads)) + 5)


def _failure(error: Exception, asked: dict[str, Any], limits: Limits) -> UnitError:
    name = asked["name"]
    if isinstance(error, UnitError):
        return error
    if isinstance(error, MemoryError):
        message = f"Reading {name} takes more than the allowed {limits.memory_mb} MB{asked['advice']}."
        return refused(message, "too_large")
    if isinstance(error, RecursionError):
        return refused(f"{name} is nested too deeply to be read.", "unreadable")
    if isinstance(error, FileNotFoundError):
        return refused(f"{name} does not exist any more.", "missing")
    return refused(f"{name} cannot be read: {type(error).__name__}: {str(error)[:300]}", "unreadable")


def _send(descriptor: int, message: dict[str, Any]) -> None:
    data = memoryview(pack(message))
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))

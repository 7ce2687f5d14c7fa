"""The child process that reads for `child`: `python -m pipeline.reading.sandbox.child_main`.

It receives one task at a time on standard input and answers on standard output. It ends with the process that started
it, or after `IDLE_S` without a task. It can neither connect to other machines nor start programs. `tasks` lists its
tasks.
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
from pipeline.reading.files.user_file import passes
from pipeline.reading.sandbox.limits import Limits, Task, refused
from pipeline.reading.sandbox.messages import Buffer, pack
from pipeline.reading.sandbox.tasks import TASKS

IDLE_S = 60.0
MAX_TASK_BYTES = 3_000_000
"""A task may contain a text of 400,000 characters."""
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
    """Let the kernel end this process when the parent closes its end, even while a library holds Python's lock."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _restrict() -> None:
    """Forbid this process to connect to other machines, start programs and dump its memory; limit the files that it
    writes, and let the system kill it first if memory runs out."""

    def refuse(event: str, _: object) -> None:
        if event in _FORBIDDEN:
            raise PermissionError(f"{event} is not allowed while files are read")

    sys.addaudithook(refuse)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, _MAX_FILE_BYTES)
    with contextlib.suppress(OSError):  # Linux: if memory runs out, this process goes first.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _limit(resource_id: int, value: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource_id, (value, resource.getrlimit(resource_id)[1]))


def _answer(request: dict[str, Any], replies: int) -> dict[str, Any]:
    limits = Limits(**request["limits"])
    _limit_processor(limits)
    with contextlib.suppress(OSError):  # Only Linux enforces this limit and reports usage.
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory_mb * 10**6 + _SLACK_BYTES)
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
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + limits.timeout_s * max(1, limits.ocr_threads)) + 5)


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
        return UnitError(f"{name} cannot be read at the moment: {error}", code="io_error")
    return refused(f"{name} cannot be read: {type(error).__name__}: {str(error)[:300]}", "unreadable")


def _send(descriptor: int, message: dict[str, Any]) -> None:
    data = memoryview(pack(message))
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""The child process that reads for `child`: `python -m pipeline.reading.child_main`.

It is given a task at a time on its standard input and answers on its standard output. It ends when the process that
started it has gone, and by itself when it has been idle for a while. It cannot connect to anything or start a program.
"""

import contextlib
import os
import queue
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pipeline.engine.errors import UnitError
from pipeline.reading import extraction, inspection
from pipeline.reading.content import Limits, Reading, check_characters, refused
from pipeline.reading.frames import Buffer, pack

IDLE_S = 60.0
MAX_TASK_BYTES = 100_000
_SLACK_BYTES = 2**30  # Address space that threads and memory pools reserve and never use.
_MAX_FILE_BYTES = 64 * 2**20
_PROGRESS_EVERY_S = 0.2
_FORBIDDEN = frozenset({
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "subprocess.Popen",
    "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty",
})  # fmt: skip


def main() -> None:
    replies = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # What libraries print must not mix with the answers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process.
    _restrict()
    tasks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(tasks,), name="tasks", daemon=True).start()
    with contextlib.suppress(queue.Empty, BrokenPipeError):
        while True:
            task = tasks.get(timeout=IDLE_S)
            _send(replies, {"started": True})
            _send(replies, _answer(task, replies))


def _receive(tasks: "queue.SimpleQueue[dict[str, Any]]") -> None:
    """Takes tasks as they arrive, also during one, so that the parent's end is noticed at any time."""
    buffer = Buffer(MAX_TASK_BYTES)
    while data := os.read(0, 65536):
        buffer.feed(data)
        while task := buffer.next():
            tasks.put(task)
    os._exit(0)


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


def _answer(task: dict[str, Any], replies: int) -> dict[str, Any]:
    limits = Limits(**task["limits"])
    _limit_processor(limits)
    with contextlib.suppress(OSError):  # Linux alone keeps to this limit, and says what is used.
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory_mb * 10**6 + _SLACK_BYTES)
    try:
        if task["task"] in inspection.TASKS:
            return inspection.TASKS[task["task"]](task)
        reading = _read(task, limits, replies)
        check_characters(sum(len(section.text) for section in reading.sections), str(task["name"]), limits)
        return _as_message(reading)
    except Exception as error:  # noqa: BLE001  # an answer, whatever happened
        failure = _failure(error, str(task["name"]), limits)
        return {"error": str(failure), "kind": failure.kind.value, "code": failure.code}


def _limit_processor(limits: Limits) -> None:
    """So that this process ends even if its parent cannot kill it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + limits.timeout_s * max(1, limits.ocr_threads)) + 5)


def _read(task: dict[str, Any], limits: Limits, replies: int) -> Reading:
    path, name = Path(task["path"]), str(task["name"])
    if task["task"] == "page":
        return extraction.extract_page(path, name, str(task["charset"]), limits)
    said_at = 0.0

    def progress(share: float) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _PROGRESS_EVERY_S:
            said_at = time.monotonic()
            _limit_processor(limits)
            _send(replies, {"progress": share})

    return extraction.extract_file(path, name, limits, progress)


def _failure(error: Exception, name: str, limits: Limits) -> UnitError:
    if isinstance(error, UnitError):
        return error
    if isinstance(error, MemoryError):
        return refused(f"Reading {name} takes more than the allowed {limits.memory_mb} MB; split it.", "too_large")
    if isinstance(error, RecursionError):
        return refused(f"{name} is nested too deeply to be read.", "unreadable")
    if isinstance(error, FileNotFoundError):
        return refused(f"{name} does not exist any more.", "missing")
    return refused(f"{name} cannot be read: {type(error).__name__}: {str(error)[:300]}", "unreadable")


def _as_message(reading: Reading) -> dict[str, Any]:
    sections = [[section.text, section.page, section.source, section.plain] for section in reading.sections]
    return {"title": reading.title[:500], "sections": sections, "warnings": reading.warnings[:100]}


def _send(descriptor: int, message: dict[str, Any]) -> None:
    data = memoryview(pack(message))
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()

"""Child processes that read hostile files: killed when they take too long or too much memory, or are not wanted.

Starting one and importing its libraries takes a second, so a process keeps a few that are idle. They are given the path
of a file, and none of our environment.
"""

import atexit
import os
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil

from pipeline.engine import search_path
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.content import Limits, Progress, Reading, Section, Unwanted, Wanted, refused
from pipeline.reading.frames import Buffer, pack

_KEPT_IDLE = 2
_MAX_TASKS = 100
_MAX_IDLE_RSS = 700_000_000
_TICK_S = 0.1
_ASK_S = 0.5
_READ_BYTES = 2**20
_BYTES_PER_CHARACTER = 6  # in JSON, at most
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")
_SCALARS = [field.name for field in fields(Limits) if field.name not in {"fetch", "sitemap"}]


class _Gone(Exception):
    """The child has ended. `started`: it had begun with the task."""

    def __init__(self, started: bool) -> None:
        super().__init__()
        self.started = started


def read(
    task: str, path: Path, name: str, limits: Limits, wanted: Wanted, progress: Progress, charset: str = ""
) -> Reading:
    """What a child reads from `path`: `task` is `file` or `page` (a web page, whose address is `name`).

    Raises `Unwanted`, or `UnitError` with code `too_slow`, `too_large`, `unreadable` (it crashed), or what
    `extraction` raises.
    """
    answer = run({"task": task, "path": str(path.absolute()), "charset": charset}, name, limits, wanted, progress)
    sections = [Section(text, page, source, plain) for text, page, source, plain in answer["sections"]]
    return Reading(answer["title"], sections, answer["warnings"])


def run(
    task: dict[str, Any], name: str, limits: Limits, wanted: Wanted = lambda: True, progress: Progress = lambda _: None
) -> dict[str, Any]:
    """A child's answer to any task that `child_main` knows. Raises what `read` raises."""
    asked = {**task, "name": name, "limits": {field: getattr(limits, field) for field in _SCALARS}}
    for _ in range(3):
        child = _take()
        try:
            answer = child.ask(asked, name, limits, wanted, progress)
        except _Gone as gone:
            code = child.end()
            if gone.started:
                raise _crash(code, name) from None
            continue  # An idle child ends by itself; this one did as it was given the task.
        except BaseException:
            child.end()
            raise
        _give_back(child)
        if "error" in answer:
            raise UnitError(str(answer["error"]), kind=ErrorKind(answer["kind"]), code=str(answer["code"]))
        return answer
    raise UnitError("No process to read files can be started; look at this machine's memory.", code="no_reader")


def _crash(code: int, name: str) -> UnitError:
    if code == -signal.SIGXCPU:
        return refused(f"Reading {name} takes too much processor time; split it.", "too_slow")
    how = signal.Signals(-code).name if code < 0 else f"status {code}"
    return refused(f"The process that read {name} crashed ({how}): the file is damaged or too complex.", "unreadable")


class _Child:
    """A running child process; it belongs to one caller at a time."""

    def __init__(self) -> None:
        environment = {name: value for name, value in search_path.environment().items() if name in _PASSED_ON}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        # Not in a session of its own: whoever kills the group of a worker kills this process as well.
        self.process = subprocess.Popen(  # noqa: S603  # our own program
            search_path.program("pipeline.reading.child_main"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, bufsize=0,
        )  # fmt: skip
        self._observed = psutil.Process(self.process.pid)
        self.tasks = 0

    def ask(
        self, task: dict[str, Any], name: str, limits: Limits, wanted: Wanted, progress: Progress
    ) -> dict[str, Any]:
        """The child's answer to `task`."""
        assert self.process.stdin
        assert self.process.stdout
        self.tasks += 1
        self._write(pack(task))
        answers = self.process.stdout.fileno()
        buffer = Buffer(limits.max_chars * _BYTES_PER_CHARACTER + 1_000_000)
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        started = False
        ask_at = 0.0
        deadline = time.monotonic() + limits.timeout_s
        ends = time.monotonic() + limits.total_s
        while True:
            if poll.poll(_TICK_S * 1000):
                data = os.read(answers, _READ_BYTES)
                if not data:
                    raise _Gone(started)
                buffer.feed(data)
                while message := buffer.next():
                    if "started" in message:
                        started = True
                    elif "progress" in message:
                        progress(float(message["progress"]))
                        deadline = time.monotonic() + limits.timeout_s
                    else:
                        return message
            now = time.monotonic()
            if now >= ask_at:
                ask_at = now + _ASK_S
                if not wanted():
                    raise Unwanted(f"{name} is not wanted any more.")
                self._check_memory(name, limits)
            if now > min(deadline, ends):
                allowed = limits.timeout_s if now > deadline else limits.total_s
                raise refused(f"Reading {name} takes more than {allowed:g} s; split it.", "too_slow")

    def _write(self, data: bytes) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(data)  # It fits into the pipe, since the child has read all before it.
        except BrokenPipeError:
            raise _Gone(started=False) from None

    def _check_memory(self, name: str, limits: Limits) -> None:
        if self.memory > limits.memory_mb * 10**6:
            raise refused(f"Reading {name} takes more than the allowed {limits.memory_mb} MB; split it.", "too_large")

    @property
    def memory(self) -> int:
        """The memory it uses, in bytes; 0 if it has ended."""
        with suppress(psutil.Error):
            return int(self._observed.memory_info().rss)
        return 0

    def end(self) -> int:
        """Kill it; its exit status."""
        self.process.kill()
        self.close_pipes()
        return self.process.wait()

    def close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class _Pool:
    """The idle children of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[_Child] = []


def _take() -> _Child:
    while True:
        with _pool.lock:
            child = _pool.idle.pop() if _pool.idle else None
        if child is None:
            return _Child()
        if child.process.poll() is None:
            return child
        child.end()


def _give_back(child: _Child) -> None:
    if child.tasks < _MAX_TASKS and 0 < child.memory < _MAX_IDLE_RSS:
        with _pool.lock:
            if len(_pool.idle) < _KEPT_IDLE:
                _pool.idle.append(child)
                return
    child.end()


def close_idle() -> None:
    """End the children that wait for work."""
    with _pool.lock:
        children, _pool.idle = _pool.idle, []
    for child in children:
        child.end()


def _renew() -> None:
    """Start afresh in a forked process: the children are the parent's, and must notice when the parent has gone."""
    global _pool  # noqa: PLW0603 (a process has one, and a fork makes a process)
    for child in _pool.idle:
        child.close_pipes()
    _inherited.append(_pool)
    _pool = _Pool()


_pool = _Pool()
_inherited: list[_Pool] = []  # kept, since dropping a process that is not ours would wait for it
os.register_at_fork(after_in_child=_renew)
atexit.register(close_idle)

"""Child processes that read hostile files: killed when they take too long or too much memory, or are not wanted.

Starting one and importing its libraries takes half a second, so a process keeps a few that are idle, and a stack has a
server that forks them. They are given the
path of a file, and none of our environment. `run` does one task; a `Session` holds one child for as long as its caller
has many, so that what the child has open stays open. What tasks there are is the table of `tasks`.
"""

import atexit
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import psutil

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.sandbox import child_process
from pipeline.reading.sandbox.limits import Limits, Progress, Unwanted, Wanted, refused
from pipeline.reading.sandbox.messages import Buffer, pack

_KEPT_IDLE = 2
_MAX_TASKS = 5_000
_MAX_RSS = 900_000_000  # of a child between tasks; text recognition keeps 400 to 600 MB, and takes a second to start
_TICK_S = 0.1
_ASK_S = 0.5
_START_S = 120.0
_READ_BYTES = 2**20
_BYTES_PER_CHARACTER = 6  # in JSON, at most
# With less than this share of a processor, which others have, a task gets so many times as long.
_STARVED, _PATIENCE = 0.5, 3
_GENTLE = 10  # niceness
_ALMOST = 0.5  # of the memory allowed: a refused request may be as large as all that was granted before
_SCALARS = [field.name for field in fields(Limits) if field.name not in {"fetch", "sitemap"}]


class _Gone(Exception):
    """The child has ended. `started`: it had begun with the task."""

    def __init__(self, started: bool) -> None:
        super().__init__()
        self.started = started


def run(
    task: Mapping[str, Any],
    name: str,
    limits: Limits,
    wanted: Wanted = lambda: True,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """A child's answer to one task. Raises what `Session.ask` raises."""
    with Session() as session:
        return session.ask(task, name, limits, wanted, progress)


def ask_about_file(
    task: dict[str, Any], name: str, wanted: Wanted, limits: Limits, advice: str = "; split it", *, gentle: bool = False
) -> dict[str, Any]:
    """A child's answer to a task on one file, which errors call `name`; `advice` and `gentle` as of `Session`.

    Raises `UnitError` as `run` does, but with `unreadable_file` for a crash; `Unwanted`.
    """
    try:
        with Session(advice, gentle=gentle) as session:
            return session.ask(task, name, limits, wanted)
    except UnitError as error:
        # `unreadable` is said of a file of ours that we may not read; this one is somebody else's.
        code = "unreadable_file" if error.code == "unreadable" else error.code
        own_name = Path(task["path"]).name  # which means nothing to who sent the file
        raise UnitError(str(error).replace(own_name, name), kind=error.kind, code=code) from error


class Session:
    """Tasks that follow one another and use the same child: for one thread, and to be closed.

    A task that fails as it should leaves the child as it is. A child that dies or is killed fails its task alone: the
    next one gets another child, so that tasks must not rely on what earlier ones did.
    """

    def __init__(self, advice: str = "; split it", *, gentle: bool = False) -> None:
        """`advice` ends the sentence that says that something takes too much. `gentle`: by a child of low priority."""
        self._advice = advice
        self._gentle = gentle
        self._child: _Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the child back to those that are idle; harmless if there is none."""
        child, self._child = self._child, None
        if child is not None and child.is_ours:
            _give_back(child)

    def _fit(self) -> "_Child | None":
        """The child, unless it is another process's or what it did before has left too much in its memory."""
        child = self._child
        if child is None or not child.is_ours:
            return None
        if child.memory < _MAX_RSS:
            return child
        child.end()
        return None

    def ask(
        self,
        task: Mapping[str, Any],
        name: str,
        limits: Limits,
        wanted: Wanted = lambda: True,
        progress: Progress = lambda _: None,
    ) -> dict[str, Any]:
        """The answer to `task`, an entry of `tasks.TASKS` by its fact `task`; errors call the file `name`.

        `wanted` is asked twice a second; each `progress` gives the task another `limits.timeout_s`. Raises `Unwanted`,
        or `UnitError`: with code `too_slow`, `too_large` or `unreadable` (permanent) if it was too much for the child,
        `no_reader` (transient) if there is none, `reader_killed` (transient) if somebody killed it and the next one as
        well, or what the task itself raises.
        """
        given = {field: getattr(limits, field) for field in _SCALARS}
        asked = {**task, "name": name, "limits": given, "advice": self._advice}
        bounds, killed = _Bounds(name, limits, self._advice), False
        for _ in range(4):
            child = self._child = self._fit() or _take(gentle=self._gentle)
            try:
                answer = child.ask(asked, bounds, wanted, progress)
            except _Gone as gone:
                code, self._child = child.end(), None
                if gone.started:
                    error = bounds.crash(code, child.peak)
                    if killed or error.kind is ErrorKind.PERMANENT:
                        raise error from None
                    killed = True  # by somebody, or for others' memory: try once more
                continue  # An idle child ends by itself; this one may have done so as it was given the task.
            except BaseException:
                self._child = None
                child.end()
                raise
            if "error" in answer:
                raise UnitError(str(answer["error"]), kind=ErrorKind(answer["kind"]), code=str(answer["code"]))
            return answer
        raise UnitError("No process to read files can be started; look at this machine's memory.", code="no_reader")


@dataclass(frozen=True)
class _Bounds:
    """What a task may take, and what is said when it takes more."""

    name: str
    limits: Limits
    advice: str

    def check_memory(self, used: int) -> None:
        if used > self.limits.memory_mb * 10**6:
            raise self._too_large()

    def too_slow(self, allowed: str) -> UnitError:
        return refused(f"Reading {self.name} takes more than {allowed}{self.advice}.", "too_slow")

    def crash(self, code: int, peak: int) -> UnitError:
        """Why a child has died that was seen to take `peak` bytes. PDFium ends its process when it gets no more."""
        if code == -signal.SIGXCPU:
            return self.too_slow("the processor time allowed")
        if code == -signal.SIGKILL:  # by the system, for memory that others take, or by somebody; never by a limit
            message = f"The process that read {self.name} was killed; look at this machine's memory."
            return UnitError(message, code="reader_killed")
        if peak > self.limits.memory_mb * 10**6 * _ALMOST:
            return self._too_large()
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        message = f"The process that read {self.name} crashed ({how}): the file is damaged or too complex."
        return refused(message, "unreadable")

    def _too_large(self) -> UnitError:
        allowed = f"the allowed {self.limits.memory_mb} MB"
        return refused(f"Reading {self.name} takes more than {allowed}{self.advice}.", "too_large")


class _Child:
    """A running child process; it belongs to one caller at a time. `gentle`: whatever else runs here comes first."""

    def __init__(self, *, gentle: bool = False) -> None:
        self.gentle = gentle
        theirs, self._lifeline = os.pipe()
        try:
            self.process = child_process.start(theirs)
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(theirs)
        if gentle:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.process.pid, _GENTLE)
        self._observed = psutil.Process(self.process.pid)
        self._parent = os.getpid()
        self.tasks = 0
        self.peak = 0
        """The most memory that it was seen to take during the last task, in bytes."""
        with _pool.lock:
            _pool.living.add(self)

    def ask(self, task: dict[str, Any], bounds: _Bounds, wanted: Wanted, progress: Progress) -> dict[str, Any]:
        """The child's answer to `task`."""
        self.tasks += 1
        self.peak, before = 0, self.memory
        self._write(pack(task, "surrogatepass"))
        answers = self.process.stdout.fileno()
        buffer = Buffer(bounds.limits.max_chars * _BYTES_PER_CHARACTER + 1_000_000)
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        clock = _Clock(bounds, lambda: self.processor_s)
        ask_at, look_at = 0.0, time.monotonic() + _TICK_S
        while True:
            if poll.poll(_TICK_S * 1000):
                data = os.read(answers, _READ_BYTES)
                if not data:
                    raise _Gone(clock.started)
                buffer.feed(data)
                while (message := _next(buffer, bounds)) is not None:
                    if "started" in message:
                        clock.start()
                    elif "progress" in message:
                        progress(float(message["progress"]))
                        clock.extend()
                    else:
                        return message
            now = time.monotonic()
            if now >= look_at:
                look_at = now + _TICK_S
                self.peak = max(self.peak, self.memory - before)
                bounds.check_memory(self.peak)
            if now >= ask_at:
                ask_at = now + _ASK_S
                if not wanted():
                    raise Unwanted(f"{bounds.name} is not wanted any more.")
            clock.check()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:  # It reads all of this at once, since it waits for nothing else.
                left = left[self.process.stdin.write(left) or 0 :]
        except BrokenPipeError:
            raise _Gone(started=False) from None

    @property
    def memory(self) -> int:
        """The memory it uses, in bytes; 0 if it has ended."""
        with suppress(psutil.Error):
            return int(self._observed.memory_info().rss)
        return 0

    @property
    def processor_s(self) -> float:
        """The processor time that it has used, in seconds; 0 if it has ended."""
        with suppress(psutil.Error):
            used = self._observed.cpu_times()
            return float(used.user + used.system)
        return 0.0

    def end(self) -> int:
        """Kill it; its exit status."""
        self.process.kill()
        self.close_pipes()
        with _pool.lock:
            _pool.living.discard(self)
        status = self.process.wait()
        self.process.close()
        return status

    @property
    def is_ours(self) -> bool:
        """Whether this process started it, and not one that it was forked from."""
        return self._parent == os.getpid()

    def close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                pipe.close()
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)


class _Clock:
    """Ends a task that takes too long. It counts from when the child begins, and each sign of progress gives more.

    On a machine that is too busy for the child to work, the clock waits: it is not the file that takes so long.
    """

    def __init__(self, bounds: _Bounds, processor_s: Callable[[], float]) -> None:
        """`processor_s`: the processor time that the child has used until now."""
        self._bounds = bounds
        self._processor_s = processor_s
        self._whole = self._step = (time.monotonic(), 0.0)
        self.started = False

    def start(self) -> None:
        self.started = True
        self._whole = self._step = (time.monotonic(), self._processor_s())

    def extend(self) -> None:
        self._step = (time.monotonic(), self._processor_s())

    def check(self) -> None:
        if not self.started:
            if time.monotonic() > self._whole[0] + _START_S:
                raise UnitError("No process to read files begins; is this machine too busy?", code="no_reader")
            return
        limits = self._bounds.limits
        for (begun, used_before), allowed in ((self._step, limits.timeout_s), (self._whole, limits.total_s)):
            took = time.monotonic() - begun
            if took > allowed and (
                took > allowed * _PATIENCE or self._processor_s() - used_before > allowed * _STARVED
            ):
                raise self._bounds.too_slow(f"{allowed:g} s")


def _next(buffer: Buffer, bounds: _Bounds) -> dict[str, Any] | None:
    try:
        return buffer.next()
    except (ValueError, RecursionError) as error:
        raise refused(f"{bounds.name} gives more than can be taken: {error}.", "too_large") from error


class _Pool:
    """The children of this process: all that live, and those that are idle."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[_Child] = []
        self.living: set[_Child] = set()


def _take(*, gentle: bool = False) -> _Child:
    while True:
        with _pool.lock:
            child = next((one for one in reversed(_pool.idle) if one.gentle is gentle), None)
            if child is not None:
                _pool.idle.remove(child)
        if child is None:
            try:
                return _Child(gentle=gentle)
            except OSError as error:
                message = f"No process to read files can be started: {error}; look at this machine's memory."
                raise UnitError(message, code="no_reader") from error
        if child.process.poll() is None:
            return child
        child.end()


def _give_back(child: _Child) -> None:
    if child.tasks < _MAX_TASKS and 0 < child.memory < _MAX_RSS:
        with _pool.lock:
            if sum(one.gentle is child.gentle for one in _pool.idle) < _KEPT_IDLE:
                _pool.idle.append(child)
                return
    child.end()


def prepare() -> None:
    """Start a child ahead of the first task, while this process is busy, if no server will fork one at once.

    Harmless if none can be started.
    """
    if not child_process.is_served():
        with suppress(OSError):
            _give_back(_Child())


def close_idle() -> None:
    """End the children that wait for work."""
    with _pool.lock:
        children, _pool.idle = _pool.idle, []
    for child in children:
        child.end()


def _renew() -> None:
    """Start afresh in a forked process: the children are the parent's, and must notice when the parent has gone."""
    global _pool  # noqa: PLW0603 (a process has one, and a fork makes a process)
    for child in _pool.living:
        child.close_pipes()
        child.process.close()
    _inherited.append(_pool)
    _pool = _Pool()


_pool = _Pool()
_inherited: list[_Pool] = []  # kept, since dropping a process that is not ours would wait for it
os.register_at_fork(after_in_child=_renew)
atexit.register(close_idle)

"""Child processes that read hostile files. A task that takes too much time or memory, or is unwanted, kills its child.

A child serves one document: its first task confines it to the files that this task names, `path` and `reads`, and to
writing to `writes`. It gets none of our environment. A program takes half a second to start and import its libraries,
so a server forks children (`child_process`); `prepare` starts it, or a child where it cannot run. `run` does one task;
a `Session` keeps one child for several tasks on a document, so that files stay open in between. `tasks` lists all
tasks.
"""

import atexit
import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple, Self

import psutil

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.sandbox import child_process
from pipeline.reading.sandbox.limits import Limits, Progress, Unwanted, Wanted, refused
from pipeline.reading.sandbox.messages import Buffer, pack

_KEPT_IDLE = 2
_MAX_TASKS = 5_000
_MAX_RSS = 900_000_000  # between tasks; text recognition keeps 400 to 600 MB and takes a second to start
_TICK_S = 0.1
_ASK_S = 0.5
_START_S = 120.0
_READ_BYTES = 2**20
_BYTES_PER_CHARACTER = 6  # in JSON, at most
# A child that gets less than this share of a processor may take this many times as long.
_STARVED, _PATIENCE = 0.5, 3
_GENTLE = 10  # niceness
_ALMOST = 0.5  # of the memory limit: the refused allocation may be as large as all earlier ones together
_SCALARS = [field.name for field in fields(Limits) if field.name not in {"fetch", "sitemap"}]


class _ChildEnded(Exception):
    """The child's process has ended. `started`: it had started the task."""

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
    """Let a sandboxed child process do one task, and return its answer; errors call the file `name`.

    Raises `Unwanted`, or `UnitError`: an error of the task, permanent if it exceeds a limit, transient if no child
    starts.
    """
    with Session() as session:
        return session.ask(task, name, limits, wanted, progress)


def ask_about_file(
    task: dict[str, Any],
    name: str,
    wanted: Wanted,
    limits: Limits,
    advice: str = "; split it",
    *,
    gentle: bool = False,
    secret: bool = False,
) -> dict[str, Any]:
    """Let a sandboxed child process do a task on one file, which errors call `name`, and return its answer.

    `advice` ends the sentence that reports an exceeded limit; `gentle` and `secret`: as in `Session`. Raises
    `Unwanted`, or `UnitError`: an error of the task, permanent with code `too_slow`, `too_large` or `unreadable_file`
    (a crash), or transient with code `no_reader` or `reader_killed`.
    """
    try:
        with Session(advice, gentle=gentle, secret=secret) as session:
            return session.ask(task, name, limits, wanted)
    except UnitError as error:
        # Elsewhere `unreadable` means one of our files that we may not read; this file is the sender's.
        code = "unreadable_file" if error.code == "unreadable" else error.code
        own_name = Path(task["path"]).name  # the sender does not know it
        raise UnitError(str(error).replace(own_name, name), kind=error.kind, code=code) from error


class _Grant(NamedTuple):
    """What the first task of a child fixes for its life: the files that it may read, the files and folders where it may
    write, and its hard limits."""

    reads: frozenset[str]
    writes: frozenset[str]
    memory_mb: int
    max_written_bytes: int

    @classmethod
    def of(cls, task: Mapping[str, Any], limits: Limits) -> Self:
        reads = frozenset(filter(None, (task.get("path"), *task.get("reads", ()))))
        return cls(reads, frozenset(task.get("writes", ())), limits.memory_mb, limits.max_written_bytes)

    def covers(self, other: "_Grant") -> bool:
        """Whether a child with this grant may do the tasks of the other one."""
        return other.reads <= self.reads and other.writes <= self.writes and other[2:] == self[2:]


class Session:
    """Consecutive tasks on one document in one child, for use by one thread. Close it.

    A task that fails with an error leaves the child running. If the child dies, only its current task fails; the next
    task gets a new child, and so does a task with files that the first one did not name. So tasks must not rely on
    earlier ones.
    """

    def __init__(
        self,
        advice: str = "; split it",
        *,
        gentle: bool = False,
        secret: bool = False,
        scratch: Path | None = None,
    ) -> None:
        """`advice` ends the sentence that reports an exceeded limit. `gentle`: use a child of low priority. `secret`:
        the child learns a secret, and ends with the session.

        `scratch`: a folder in which each child gets a folder to write to, which tasks know as their entry `scratch`; it
        is removed with the child.
        """
        self._advice = advice
        self._gentle = gentle
        self._secret = secret
        self._scratch = scratch
        self._child: _Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other sessions on the same document use the child, or end it; harmless without a child."""
        child, self._child = self._child, None
        if child is not None and child.is_ours:
            if self._secret:
                child.end()
            else:
                _give_back(child)

    @property
    def scratch(self) -> Path | None:
        """The folder to which the child of the last task may write, until the next task or `close`; None without
        one."""
        return self._child.scratch if self._child else None

    def _fit(self, grant: _Grant, limits: Limits) -> "_Child | None":
        """Return the session's child if it can do the next task. None: there is none, another process started it, or it
        has just been ended since it was confined to other files, or earlier tasks have used up its memory or time."""
        child = self._child
        if child is None or not child.is_ours:
            return None
        if child.memory < _MAX_RSS and child.may_serve(grant, limits):
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
        """Let the child do `task`, and return its answer; errors call the file `name`. Its entry `task` names it in
        `tasks.TASKS`, `path` and `reads` the files that it may read, `writes` files and folders that exist.

        Calls `wanted` twice a second, and ends the child if it returns False; each `progress` grants another
        `limits.timeout_s`. Raises `Unwanted`, an error of the task, or `UnitError` with code `too_slow`, `too_large` or
        `unreadable` (permanent: the file exceeds a limit or crashes the child), `no_reader` (transient: no child
        starts) or `reader_killed` (transient: something killed two children in a row).
        """
        scalars = {field: getattr(limits, field) for field in _SCALARS}
        grant = _Grant.of(task, limits)
        request = {**task, "name": name, "limits": scalars, "advice": self._advice}
        bounds, killed = _Bounds(name, limits, self._advice), False
        for _ in range(4):
            child = self._child = self._fit(grant, limits) or _take(grant, limits, self._scratch, gentle=self._gentle)
            try:
                answer = child.ask(request, grant, bounds, wanted, progress)
            except _ChildEnded as ended:
                code, self._child = child.end(), None
                if ended.started:
                    error = bounds.crash(code, child.peak)
                    if killed or error.kind is ErrorKind.PERMANENT:
                        raise error from None
                    killed = True  # not by us, or to free memory: try once more
                continue  # An idle child ends after a while, perhaps just as it receives a task.
            except BaseException:
                self._child = None
                child.end()
                raise
            child_process.preload(map(str, answer.pop("loaded", ())))
            if "error" in answer:
                raise UnitError(str(answer["error"]), kind=ErrorKind(answer["kind"]), code=str(answer["code"]))
            return answer
        raise UnitError("No process to read files can be started; look at this machine's memory.", code="no_reader")


@dataclass(frozen=True)
class _Bounds:
    """The limits of a task, and the errors for exceeding them."""

    name: str
    limits: Limits
    advice: str

    def check_memory(self, used: int) -> None:
        if used > self.limits.memory_mb * 10**6:
            raise self._too_large()

    def too_slow(self, allowed: str) -> UnitError:
        return refused(f"Reading {self.name} takes more than {allowed}{self.advice}.", "too_slow")

    def crash(self, code: int, peak: int) -> UnitError:
        """Return the error for a dead child that used up to `peak` bytes. PDFium ends its process without memory."""
        if code == -signal.SIGXCPU:
            return self.too_slow("the processor time allowed")
        if code == -signal.SIGKILL:  # by the system to free memory, or by hand; never by a limit
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
    """A running child process, owned by one caller at a time. `gentle`: it runs at low priority."""

    def __init__(self, scratch: Path | None = None, *, gentle: bool = False) -> None:
        """`scratch`: as in `Session`."""
        self.gentle = gentle
        self.grant: _Grant | None = None
        """What confines it since its first task."""
        self.identities: frozenset[_Identity] = frozenset()
        """The files that it was given."""
        self._most_processor_s = 0.0
        read_end, self._lifeline = os.pipe()
        try:
            self.process = child_process.start(read_end)
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(read_end)
        self.scratch = Path(mkdtemp(prefix="penstock-page-", dir=scratch)) if scratch else None
        if gentle:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.process.pid, _GENTLE)
        self._observed = psutil.Process(self.process.pid)
        self._parent = os.getpid()
        self.tasks = 0
        self.peak = 0
        """The most memory observed during the last task, in bytes."""
        with _pool.lock:
            _pool.living.add(self)

    def may_serve(self, grant: _Grant, limits: Limits) -> bool:
        """Whether it has not been confined yet, or to files and limits that suit the next task."""
        if self.grant is None:
            return True
        return self.grant.covers(grant) and self.processor_s + limits.processor_s <= self._most_processor_s

    def ask(
        self, task: dict[str, Any], grant: _Grant, bounds: _Bounds, wanted: Wanted, progress: Progress
    ) -> dict[str, Any]:
        """Return the child's answer to `task`: its result, or a dict with the `error` of the task.

        Raises `_ChildEnded`, `Unwanted`, or `UnitError` if the task exceeds a limit.
        """
        self.peak, before = 0, self.memory
        self._send(task, grant, bounds.limits)
        answers = self.process.stdout.fileno()
        buffer = Buffer(bounds.limits.max_chars * _BYTES_PER_CHARACTER + 1_000_000)
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        clock = _Clock(bounds, lambda: self.processor_s)
        ask_at, measure_at = 0.0, time.monotonic() + _TICK_S
        while True:
            if poll.poll(_TICK_S * 1000):
                data = os.read(answers, _READ_BYTES)
                if not data:
                    raise _ChildEnded(clock.started)
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
            if now >= measure_at:
                measure_at = now + _TICK_S
                self.peak = max(self.peak, self.memory - before)
                bounds.check_memory(self.peak)
            if now >= ask_at:
                ask_at = now + _ASK_S
                if not wanted():
                    raise Unwanted(f"{bounds.name} is no longer wanted.")
            clock.check()

    def _send(self, task: dict[str, Any], grant: _Grant, limits: Limits) -> None:
        self.tasks += 1
        if self.grant is None:
            self.grant, self.identities = grant, _identities(grant)
            self._most_processor_s = self.processor_s + limits.most_processor_s
        scratch = [str(self.scratch)] if self.scratch else []
        files = {"reads": [*grant.reads], "writes": [*grant.writes, *scratch], "scratch": "".join(scratch)}
        remaining = memoryview(pack(task | files, "surrogatepass"))
        try:
            while remaining:  # The child reads all of it at once, since it waits for nothing else.
                remaining = remaining[self.process.stdin.write(remaining) or 0 :]
        except BrokenPipeError:
            raise _ChildEnded(started=False) from None

    @property
    def memory(self) -> int:
        """The memory in use, in bytes; 0 after the process has ended."""
        with suppress(psutil.Error):
            return int(self._observed.memory_info().rss)
        return 0

    @property
    def processor_s(self) -> float:
        """The processor time used, in seconds; 0 after the process has ended."""
        with suppress(psutil.Error):
            used = self._observed.cpu_times()
            return float(used.user + used.system)
        return 0.0

    def end(self) -> int:
        """Kill the process and return its exit status."""
        self.process.kill()
        self.close_pipes()
        with _pool.lock:
            _pool.living.discard(self)
        status = self.process.wait()
        self.process.close()
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)
        return status

    @property
    def is_ours(self) -> bool:
        """Whether this very process started the child, not the process from which this one was forked."""
        return self._parent == os.getpid()

    def close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                pipe.close()
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)


class _Clock:
    """Ends a task that takes too long. Time starts when the child starts the task; each progress grants more.

    On a machine too busy to run the child, the clock waits: the delay is not the file's fault.
    """

    def __init__(self, bounds: _Bounds, processor_s: Callable[[], float]) -> None:
        """`processor_s` returns the processor time that the child has used so far."""
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
                raise UnitError("The process that reads files does not start; is this machine busy?", code="no_reader")
            return
        limits = self._bounds.limits
        for (started, used_before), allowed in ((self._step, limits.timeout_s), (self._whole, limits.total_s)):
            took = time.monotonic() - started
            if took > allowed and (
                took > allowed * _PATIENCE or self._processor_s() - used_before > allowed * _STARVED
            ):
                raise self._bounds.too_slow(f"{allowed:g} s")


def _next(buffer: Buffer, bounds: _Bounds) -> dict[str, Any] | None:
    try:
        return buffer.next()
    except (ValueError, RecursionError) as error:
        raise refused(f"{bounds.name} yields too much: {error}.", "too_large") from error


class _Pool:
    """The children of this process: all living ones, and the idle ones among them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[_Child] = []
        self.living: set[_Child] = set()


_Identity = tuple[str, int, int, int, int]


def _identities(grant: _Grant) -> frozenset[_Identity]:
    """Return the path, device and inode of each existing path, and size and time of change of the files to read."""
    identities = set()
    for path in grant.reads | grant.writes:
        with suppress(OSError):
            status = Path(path).stat()
            state = (status.st_size, status.st_mtime_ns) if path in grant.reads else (0, 0)
            identities.add((path, status.st_dev, status.st_ino, *state))
    return frozenset(identities)


def _take(grant: _Grant, limits: Limits, scratch: Path | None = None, *, gentle: bool = False) -> _Child:
    """Return an idle child of the same document, or else a fresh one."""
    identities = _identities(grant)
    while True:
        with _pool.lock:
            fitting = [
                idle
                for idle in _pool.idle
                if idle.gentle is gentle
                and (idle.scratch and idle.scratch.parent) == scratch
                and idle.may_serve(grant, limits)
                and (idle.grant is None or idle.identities >= identities)
            ]
            child = max(fitting, key=lambda idle: idle.grant is not None, default=None)
            if child is not None:
                _pool.idle.remove(child)
        if child is None:
            try:
                return _Child(scratch, gentle=gentle)
            except OSError as error:
                message = f"No process to read files can be started: {error}; look at this machine's memory."
                raise UnitError(message, code="no_reader") from error
        if child.process.poll() is None:
            return child
        child.end()


def _give_back(child: _Child) -> None:
    """Keep a child for further tasks on its document, and end the one that has been idle longest; end a child of texts,
    whose document is unknown."""
    ended = child
    reusable = child.grant is None or child.grant.reads
    if reusable and child.tasks < _MAX_TASKS and 0 < child.memory < _MAX_RSS:
        with _pool.lock:
            _pool.idle.append(child)
            similar = [idle for idle in _pool.idle if idle.gentle is child.gentle]
            if len(similar) <= _KEPT_IDLE:
                return
            ended = similar[0]
            _pool.idle.remove(ended)
    ended.end()


def defences() -> list[str]:
    """Return what confines the children of this process, as one of them reports it. Raises `UnitError`."""
    return list(run({"task": "defences"}, "no file", Limits(timeout_s=60))["active"])


def prepare() -> None:
    """Make sure that the first task need not wait for its child process: start a server, or an idle child. Does nothing
    if none can be started."""
    if not child_process.serve():
        with suppress(OSError):
            _give_back(_Child())


def close_idle() -> None:
    """End the child processes that no session uses."""
    with _pool.lock:
        children, _pool.idle = _pool.idle, []
    for child in children:
        child.end()


def _renew() -> None:
    """Reset the pool in a forked process: the children are the parent's, and must notice when the parent ends."""
    global _pool  # noqa: PLW0603 (a process has one, and a fork makes a process)
    for child in _pool.living:
        child.close_pipes()
        child.process.close()
    _inherited.append(_pool)
    _pool = _Pool()


_pool = _Pool()
_inherited: list[_Pool] = []  # kept, since dropping another process's child would wait for it
os.register_at_fork(after_in_child=_renew)
atexit.register(close_idle)

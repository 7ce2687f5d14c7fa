"""Virtual time, events and acting processes. A process may die or stall at any point between two steps."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from tests.simulation.coroutine import Coroutine

BEGIN = datetime(2100, 1, 1, tzinfo=UTC)
"""A time in the far future, so that no key expires in real time."""
BEGIN_MS = int(BEGIN.timestamp() * 1000)
TRACED = 400


class Killed(BaseException):
    """The acting process has died."""


class Violation(BaseException):
    """An invariant is broken. Not an `Exception`: the kernel continues after exceptions that it does not expect."""


@dataclass(eq=False)
class Process:
    """A process: of a worker's pool, a worker's main process, a client, or beat. It dies as a whole."""

    id: str
    worker: Any = None
    alive: bool = True
    mortal: bool = True
    under_way: set[str] = field(default_factory=set)
    """The deliveries of the process's threads, as `engine.deliveries` keeps them."""
    clock_s: float = 0.0
    """The error of its host's clock."""


@dataclass(frozen=True)
class Faults:
    """The likelihood of each fault, at each point where it may happen."""

    kill: float = 0.0
    pause: float = 0.0
    """A process stalls between two steps."""
    freeze: float = 0.0
    """A process stalls with a result, until its claim has long expired."""
    repeat: float = 0.0
    """A client repeats a command, because the answer of Redis was lost."""
    redis_error: float = 0.0
    commit_lost: float = 0.0
    commit_ambiguous: float = 0.0
    """A process repeats a commit, because the database's answer was lost."""
    lose: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    reorder: float = 0.0
    flush_every_s: float = 0.0
    kill_worker_every_s: float = 0.0
    kill_child_every_s: float = 0.0
    end_worker_every_s: float = 0.0
    cut_every_s: float = 0.0
    gate_every_s: float = 0.0
    limits_every_s: float = 0.0
    wrong_clocks: bool = False
    inside: bool = False
    """Processes also die and stall inside of transactions."""
    poison: bool = False
    """The provider always refuses one unit, as if its rate were exceeded."""
    full_every_s: float = 0.0
    """Redis is at its memory limit for a while, and refuses commands that need more."""
    outage: bool = False
    """For some time, the provider accepts no connection."""
    wrong_key: bool = False
    """For some time, the provider refuses the key."""
    fail_over_every_s: float = 0.0
    """A replica that lacks the last seconds takes the place of Redis."""


class World:
    """The time, randomness, events and trace of one seed."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.faults = faults
        self.calm = False
        """The faults are over."""
        self.now_us = 0
        self.trace: deque[tuple[int, str, str, dict[str, Any]]] = deque(maxlen=TRACED)
        self.steps = 0
        self.failure: BaseException | None = None
        self.acting: Any = None
        self._heap: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = 0
        self._held_up: dict[Coroutine, Process] = {}
        self.running: Coroutine | None = None
        """Return the acting coroutine."""
        self.on_kill: Callable[[Process], None] = lambda process: None

    @property
    def now_ms(self) -> int:
        return BEGIN_MS + self.now_us // 1000

    @property
    def now_s(self) -> float:
        return self.now_us / 1e6

    def now(self) -> datetime:
        """Return the database's time."""
        return BEGIN + timedelta(microseconds=self.now_us)

    def host_time(self) -> datetime:
        """Return the time by the acting host's clock, which may be wrong."""
        return self.now() + timedelta(seconds=self.acting.clock_s if self.acting else 0)

    def number(self) -> int:
        """Return a unique number."""
        self._numbers += 1
        return self._numbers

    def chance(self, likely: float) -> bool:
        """Decide at random whether a fault happens."""
        return bool(likely) and not self.calm and self.rng.random() < likely

    def note(self, event: str, **fields: Any) -> None:
        """Add a line to the trace."""
        self.steps += 1
        self.trace.append((self.now_us, self.acting.id if self.acting else "world", event, fields))

    # Events

    def at(self, delay_s: float, act: Callable[[], object]) -> None:
        """Call a function after a delay."""
        heapq.heappush(self._heap, (self.now_us + max(0, int(delay_s * 1e6)), self.number(), act))

    def every(self, mean_s: float, act: Callable[[], object]) -> None:
        """Call a function at random times until the faults end."""
        if not mean_s:
            return

        def again() -> None:
            if not self.calm:
                act()
                self.at(self.rng.expovariate(1 / mean_s), again)

        self.at(self.rng.expovariate(1 / mean_s), again)

    def run(self, until: Callable[[], bool], longest_s: float) -> None:
        """Run events until a condition holds or the time is over."""
        end = self.now_us + int(longest_s * 1e6)
        while self._heap and self._heap[0][0] <= end and not until():
            when, _, act = heapq.heappop(self._heap)
            self.now_us = max(self.now_us, when)
            act()
            if self.failure is not None:
                raise self.failure

    def end(self) -> None:
        """End all stalled coroutines."""
        self.on_kill = lambda process: None
        for coroutine, process in list(self._held_up.items()):
            process.alive = False
            while not coroutine.ended:
                self._resume(coroutine, process)

    # Processes

    def spawn(self, process: Process, act: Callable[[], object]) -> None:
        """Run a function as a process, which may stall or die at any `point`."""

        def body() -> None:
            try:
                act()
            except Killed:
                self.note("killed")
            except BaseException as error:  # noqa: BLE001  # `run` raises it
                self.failure = self.failure or error

        coroutine = Coroutine(body)
        self._held_up[coroutine] = process
        self._resume(coroutine, process)

    def _resume(self, coroutine: Coroutine, process: Process) -> None:
        running, acting = self.running, self.acting
        self.running, self.acting = coroutine, process
        coroutine.resume()
        if coroutine.ended:
            self._held_up.pop(coroutine, None)
        self.running, self.acting = running, acting

    def sleep(self, seconds: float) -> None:
        """Pause the acting process, while others act. It continues only if it still lives."""
        coroutine, process = self.running, self.acting
        until = self.now_us + max(0, int(seconds * 1e6))
        if coroutine is None or process is None:
            self.now_us = until
            return
        if self._heap and self._heap[0][0] <= until:
            heapq.heappush(self._heap, (until, self.number(), lambda: self._resume(coroutine, process)))
            coroutine.hand_back()
        else:
            self.now_us = until
        if not process.alive:
            raise Killed

    def point(self, where: str) -> None:
        """A point between two steps, at which the acting process may stall or die."""
        process = self.acting
        if process is None:
            return
        if not process.alive:
            raise Killed
        if self.calm or self.running is None:
            return
        drawn = self.rng.random()
        if drawn < self.faults.kill and process.mortal:
            self.note("dies", where=where)
            self.kill(process)
            raise Killed
        if drawn > 1 - self.faults.pause:
            self.sleep(self.rng.expovariate(1 / self.rng.choice((0.02, 0.5, 3))))

    def kill(self, process: Process) -> None:
        """Kill a process. Its coroutines end at their next point."""
        process.alive = False
        self.on_kill(process)

    def as_process(self, process: Process, act: Callable[[], object]) -> None:
        """Run a function as a process at once and without pauses, as a worker's main process does."""
        running, acting = self.running, self.acting
        self.running, self.acting = None, process
        try:
            act()
        except Killed:
            pass
        finally:
            self.running, self.acting = running, acting

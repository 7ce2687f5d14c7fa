"""A provider that counts its calls, and checks their callers, times and limits."""

from collections import Counter, deque
from collections.abc import Callable, Sequence

from pipeline.engine.breaker import BreakerPolicy
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.gate import Unit, Usage, Window
from pipeline.engine.guarded_call import request_hooks
from tests.simulation.world import Process, Violation, World

POLICY = BreakerPolicy(fail_max=5, cool_down_s=5, longest_s=20)
OUTAGE = UnitError("it accepts no connection", kind=ErrorKind.TRANSIENT, code="connection")
WRONG_KEY = UnitError("it refuses the key", kind=ErrorKind.UNAVAILABLE, code="unauthorized")

LONGEST_CALL_S = 2.0
NAME = "sim"
QUEUE = "vision.sim"


class Provider:
    """The simulated service of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.windows: Sequence[Window] = ()
        self.calls_ms: deque[int] = deque()
        """The times of all calls."""
        self.recorded: list[int] = []
        """The times of the calls on record. A call is on record once it has ended."""
        self.started: Counter[int] = Counter()
        self.paid: Counter[int] = Counter()
        self.not_counted: Counter[int] = Counter()
        self.refused_poison = 0
        self.refused_keys = 0
        self.serves_nobody: UnitError | None = None
        """The outcome of every call, for the time being."""
        self.on_refused_key: Callable[[], None] = lambda: None
        self.concurrency = 0
        self.calling: list[Process] = []
        self.emptied_at = -1_000_000_000
        self.forgiven: list[int] = []
        """The times at which an emptied Redis forgot a running call, once for each call."""

    def call(self, unit: int, kind: str) -> str:
        """Answer one request about a unit of a kind."""
        world = self.world
        hooks = request_hooks.get()
        if hooks is None:
            raise RuntimeError("a call without hooks")
        hooks.ready()
        self._count()
        started_ms = world.now_ms
        self.started[unit] += 1
        caller = world.acting
        assert caller is not None
        self.calling = [process for process in self.calling if process.alive] + [caller]
        try:
            if len(self.calling) > self.concurrency and started_ms - self.emptied_at > 60_000:
                raise Violation(f"{len(self.calling)} calls at once, {self.concurrency} are allowed")
            hooks.sent()
            world.sleep(world.rng.uniform(0.05, LONGEST_CALL_S))
            if kind == "deadly" and world.acting and not world.calm:
                world.note("unit kills its process", unit=unit)
                world.kill(world.acting)
                world.point("dead")
        finally:
            self._ended(caller)
        self.recorded.append(started_ms)
        self._fail(unit, kind)
        self.paid[unit] += 1
        return f"result of {unit}"

    def _ended(self, caller: Process) -> None:
        if caller in self.calling:
            self.calling.remove(caller)

    def _fail(self, unit: int, kind: str) -> None:
        world = self.world
        if (why := self.serves_nobody) is not None:
            if why is WRONG_KEY:
                self.refused_keys += 1
                self.on_refused_key()
            raise UnitError(str(why), kind=why.kind, code=why.code)
        if kind == "bad":
            raise UnitError("it is broken", kind=ErrorKind.PERMANENT)
        if kind == "flaky" and world.rng.random() < 0.5:
            raise UnitError("it failed for now", kind=ErrorKind.TRANSIENT)
        if kind == "poison":
            self.refused_poison += 1
            raise UnitError("too many", kind=ErrorKind.RATE_LIMITED, retry_after_s=0.2)
        if not world.calm and world.rng.random() < 0.02:
            self.not_counted[unit] += 1
            raise UnitError("too many", kind=ErrorKind.RATE_LIMITED, retry_after_s=world.rng.choice((1, 5)))

    def _count(self) -> None:
        now = self.world.now_ms
        self.calls_ms.append(now)
        while self.calls_ms and self.calls_ms[0] < now - 120_000:
            self.calls_ms.popleft()
        for window in self.windows:
            since = now - window.window_s * 1000
            used = sum(when > since for when in self.calls_ms)
            excused = sum(when > since - 1000 for when in self.forgiven)
            if used > window.limit + excused:
                raise Violation(f"{used} calls in {window.window_s} s, {window.limit} are allowed")

    def emptied(self, replicated_ms: int | None = None) -> None:
        """Note that Redis forgot calls. An emptied Redis forgot the running calls, and the calls whose process died
        before it recorded them. A replica forgot the calls after its last write, and the calls that ran then."""
        self.emptied_at = self.world.now_ms
        if replicated_ms is None:
            known = sum(when >= self.world.now_ms - 120_000 for when in self.recorded)
        else:
            known = sum(when < replicated_ms - LONGEST_CALL_S * 1000 for when in self.calls_ms)
        self.forgiven += [self.world.now_ms] * (len(self.calls_ms) - known)

    def on_record(self, within_s: float) -> Usage:
        """Return the calls on record, from which the gates are filled."""
        now = self.world.now_ms
        return {Unit.REQUESTS: [(now - when, 1) for when in self.recorded if now - when < within_s * 1010]}

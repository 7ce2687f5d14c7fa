"""The breaker of a provider's capability: pybreaker counts failures and decides, Redis keeps, the gates refuse calls.

pybreaker learns the outcome of a call afterwards: during the call it would hold a lock. The one probe of a half-open
breaker is a lease in the gate, because pybreaker would let one call of every process through.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pybreaker
from redis import Redis

from pipeline.engine.errors import ErrorKind, Health, UnitError
from pipeline.engine.gate import Scope, breaker_key, provider_scope
from pipeline.engine.leases import script
from pipeline.engine.wire import VIEW

RATE_LIMIT_S = 120.0
"""The pause after a rate limit whose response names none. Rule: docs/sources/music.md#breaker."""
STUBBORN = 4
"""After this many openings in a row (some minutes), a failed call checks whether its unit is at fault."""
MAX_REASON = 300


@dataclass(frozen=True)
class BreakerPolicy:
    """When a breaker opens, and for how long."""

    fail_max: int = 5
    """How many transient failures in a row open the breaker."""
    cool_down_s: float = 15.0
    """The first pause after them; each further pause is twice as long."""
    longest_s: float = 900.0


@dataclass(frozen=True)
class BreakerState:
    """The state of the breaker of one provider's capability."""

    __pydantic_config__ = VIEW
    name: str
    state: str
    """`closed`: admits calls; `open`: refuses calls; `half-open`: admits one call as a probe."""
    reason: str
    left_s: float
    """Seconds until an open breaker admits a probe."""
    failures: int
    """Failures in a row."""


class Breaker:
    """The breaker of one provider's capability, such as `openai:vision`, shared by the fleet."""

    def __init__(self, redis: "Redis", name: str, policy: BreakerPolicy) -> None:
        self.name = name
        self._redis = redis
        self._policy = policy
        self._key = breaker_key(name)
        self._worked_key = f"penstock:{{gates}}:{name}:worked"
        self._storage = _Storage(redis, name)
        self._breaker = pybreaker.CircuitBreaker(
            fail_max=policy.fail_max,
            reset_timeout=0,  # the storage knows the end of the pause
            state_storage=self._storage,
            listeners=[_Wake(provider_scope(redis, name.partition(":")[0]))],
            name=name,
        )

    def succeeded(self, closing: Callable[[], None] = lambda: None) -> bool:
        """Record that the provider works: a call succeeded, or its unit was at fault. True if that closed the half-open
        breaker; an open one stays open.

        Calls `closing` before it closes. If that raises, it stays half-open, and the next success closes it.
        """
        # Most calls succeed: one script reads the state and the failures.
        act = self._redis.register_script(script("breaker_worked"))
        keys = [self._storage.state_key, self._storage.failures_key, self._worked_key, self._key]
        state, failures = cast("list[str | None]", act(keys=keys))
        if state in (None, pybreaker.STATE_CLOSED):
            if failures not in (None, "0"):
                with suppress(pybreaker.CircuitBreakerError):  # another process has just opened it
                    self._record(None)
            return False
        # The call may have started before the breaker opened: it proves nothing about the provider now.
        if self.inspect().state != "half-open":
            return False
        closing()
        return self.close()

    def failed(
        self, error: UnitError, quota_reset: Callable[[datetime], datetime], closing: Callable[[], None] = lambda: None
    ) -> float:
        """Record a failed call; return the seconds for which this opens the breaker, or 0 if it opens nothing. A
        permanent or cancelled error counts as a success: the provider works.

        `quota_reset`: returns the end of a daily quota after a given time. `closing`: called before a half-open breaker
        closes; if it raises, the breaker stays half-open.
        """
        match error.kind:
            case ErrorKind.RATE_LIMITED:
                reason = "rate limit" if error.code in {"", "rate_limited"} else error.code.replace("_", " ")
                return self._opened(error.retry_after_s or RATE_LIMIT_S, reason)
            case ErrorKind.UNAVAILABLE if not (error.health and error.health.blames_unit(None)):
                return self._opened(0.0, str(error)[:MAX_REASON])
            case ErrorKind.QUOTA:
                # Use Redis's clock: a host's clock that is an hour off could lengthen the wait to a day.
                seconds, micros = self._redis.time()
                now = datetime.fromtimestamp(seconds + micros / 1e6, UTC)
                wait_s = error.retry_after_s or (quota_reset(now) - now).total_seconds()
                return self._opened(wait_s, "daily quota")
            case ErrorKind.TRANSIENT | ErrorKind.UNAVAILABLE:
                return self._failed(error, closing)
        self.succeeded(closing)
        return 0.0

    def _failed(self, error: UnitError, closing: Callable[[], None]) -> float:
        """Record a failure that counts. Returns for how many seconds it opened the breaker.

        A breaker that is not closed opens again. But if the provider answers a free question (`error.health`), the
        units are at fault: a half-open breaker closes, an open one stays open, and a closed one that has counted
        enough failures opens for its shortest time.
        """
        code = error.code or error.kind
        answers = error.health is not None and error.health.answers
        if self._storage.state != pybreaker.STATE_CLOSED:
            # The probe of a half-open breaker failed, or a call that started before it opened.
            if not answers:
                return self._opened(0.0, f"still failing: {code}")
            if self.inspect().state == "half-open":
                closing()
                self.close(keeps_streak=True)
            return 0.0
        try:
            self._record(error)
        except pybreaker.CircuitBreakerError:
            wait_s = self._policy.cool_down_s if answers else 0.0
            return self._opened(wait_s, f"{self._policy.fail_max} failures in a row: {code}")
        except UnitError:
            pass
        return 0.0

    def health(self, took_s: float, answers: Callable[[], bool]) -> Health:
        """Return the provider's health when a call of `took_s` seconds fails.

        `answers`: asks the provider a free question; called only if the breaker opened `STUBBORN` times in a row.
        """
        seconds, micros = self._redis.time()
        worked, streak = self._redis.get(self._worked_key), self._redis.hget(self._key, "streak")
        worked_s_ago = seconds + micros / 1e6 - float(str(worked)) / 1000 if worked else None
        stubborn = int(str(streak or 0)) >= STUBBORN
        return Health(took_s, worked_s_ago, stubborn and answers())

    def _record(self, error: UnitError | None) -> None:
        """Tell pybreaker the outcome of a finished call.

        Raises `error`, or `CircuitBreakerError` if the breaker is open or that opened it.
        """
        with self._breaker.calling():
            if error is not None:
                raise error

    def open(self, seconds: float, reason: str) -> float:
        """Open the breaker, so that its gates admit nothing, for `seconds` (0: a cool-down that doubles with each
        opening in a row). Never shortens an opening. Return the seconds left."""
        return self._open(seconds, reason)[0]

    def _opened(self, seconds: float, reason: str) -> float:
        """Open as `open` does; return the seconds left, or 0 if it was already open for as long."""
        left_s, is_news = self._open(seconds, reason)
        return left_s if is_news else 0.0

    def _open(self, seconds: float, reason: str) -> tuple[float, bool]:
        policy = self._policy
        arguments = [int(seconds * 1000), reason, int(policy.cool_down_s * 1000), int(policy.longest_s * 1000)]
        act = self._redis.register_script(script("breaker_open"))
        left_ms, is_news = act(keys=[self._key], args=cast("Any", arguments))
        self._breaker.open()
        return int(left_ms) / 1000, bool(is_news)

    def close(self, *, keeps_streak: bool = False) -> bool:
        """Close the breaker and forget until when it was open; wake workers that wait. False if it was closed already.

        `keeps_streak`: the next opening counts as one more in a row unless a call succeeds first.
        """
        was_paused = bool(self._redis.hdel(self._key, "until", "reason", "probe", "probe_until"))
        if not keeps_streak:
            self._redis.delete(self._key)
        if not was_paused and self._storage.state == pybreaker.STATE_CLOSED:
            return False
        self._breaker.close()
        return True

    def half_open_if_due(self) -> bool:
        """Record for the watchdog that a breaker whose pause is over is half-open. True if this call did so."""
        if self._storage.state == pybreaker.STATE_OPEN and self.inspect().left_s <= 0:
            self._breaker.half_open()
            return True
        return False

    def inspect(self) -> BreakerState:
        """The breaker's state. Half-open as soon as its pause is over, also before the watchdog notes that."""
        left_s = self._storage.left_s
        state = "closed" if left_s is None else "open" if left_s > 0 else "half-open"
        reason = cast("str | None", self._redis.hget(self._key, "reason"))
        return BreakerState(self.name, state, reason or "", left_s or 0.0, self._storage.counter)


class _Storage(pybreaker.CircuitBreakerStorage):
    """State and failures in a row of one breaker, in Redis, for the whole fleet."""

    def __init__(self, redis: "Redis", name: str) -> None:
        super().__init__(name)
        self._redis = redis
        self._key = breaker_key(name)
        # The keys of pybreaker's own storage, which earlier versions used.
        self.state_key, self.failures_key = (
            f"penstock:{{gates}}:{name}:pybreaker:{field}" for field in ("state", "fail_counter")
        )

    @property
    def state(self) -> str:
        return str(self._redis.get(self.state_key) or pybreaker.STATE_CLOSED)

    @state.setter
    def state(self, state: str) -> None:
        self._redis.set(self.state_key, state)

    @property
    def counter(self) -> int:
        return int(str(self._redis.get(self.failures_key) or 0))

    def increment_counter(self) -> None:
        self._redis.incr(self.failures_key)

    def reset_counter(self) -> None:
        self._redis.set(self.failures_key, 0)

    @property
    def success_counter(self) -> int:
        """One success closes a half-open breaker: no need to count."""
        return 1

    @property
    def opened_at(self) -> datetime:
        """The end of the pause, so that pybreaker adds no time-out; by this host's clock, as pybreaker compares it."""
        return datetime.now(UTC) + timedelta(seconds=self.left_s or 0.0)

    @opened_at.setter
    def opened_at(self, _: datetime) -> None:
        """`breaker_open.lua` has set the end of the pause."""

    @property
    def left_s(self) -> float | None:
        """Seconds until the end of the pause; None without one."""
        until = cast("str | None", self._redis.hget(self._key, "until"))
        if until is None:
            return None
        seconds, micros = self._redis.time()
        return max(0.0, float(until) / 1000 - seconds - micros / 1e6)


class _Wake(pybreaker.CircuitBreakerListener):
    """Wakes the workers that wait for a provider when its breaker closes."""

    def __init__(self, provider: Scope) -> None:
        self._provider = provider

    def state_change(self, cb: pybreaker.CircuitBreaker, old_state: Any, new_state: Any) -> None:  # noqa: ARG002
        if new_state.name == pybreaker.STATE_CLOSED:
            self._provider.wake()

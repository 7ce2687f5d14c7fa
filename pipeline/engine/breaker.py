"""The breaker of a provider's capability: pybreaker keeps state and count in Redis, the gates keep the time.

Outcomes are recorded after the call, never around it: pybreaker holds a lock for the length of what it calls, and
lets every process through when half-open. The one probe of a half-open breaker is a lease in the gate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, cast

import pybreaker
from redis import Redis

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.gate import breaker_key
from pipeline.engine.leases import script

RATE_LIMIT_S = 120.0
"""Pause after a rate limit that names none. Source 002, sections 2.B and 7."""


@dataclass(frozen=True)
class BreakerPolicy:
    """When it opens and for how long."""

    fail_max: int = 5
    """Transient failures in a row that open it."""
    cool_down_s: float = 15.0
    """The first pause after such failures; each further one is twice as long."""
    longest_s: float = 900.0


@dataclass(frozen=True)
class BreakerState:
    """`closed`, `open` or `half-open`. `left_s`: until it lets a probe through, if open."""

    name: str
    state: str
    reason: str
    left_s: float
    failures: int


class Breaker:
    """The breaker of one provider's capability, such as `openai:vision`, fleet-wide."""

    def __init__(self, redis: "Redis", name: str, policy: BreakerPolicy) -> None:
        self.name = name
        self._redis = redis
        self._policy = policy
        self._key = breaker_key(name)
        self._storage = pybreaker.CircuitRedisStorage(
            pybreaker.STATE_CLOSED, cast("Any", _Bytes(redis)), namespace=f"penstock:{{gates}}:{name}"
        )
        # The time-out is ours: pybreaker must never half-open by itself.
        self._breaker = pybreaker.CircuitBreaker(
            fail_max=policy.fail_max, reset_timeout=10**9, state_storage=self._storage, name=name
        )

    def succeeded(self) -> bool:
        """A call went well (or was refused for its own fault: the provider is there). True if that closed it."""
        if self._storage.state == pybreaker.STATE_CLOSED:
            if self._storage.counter:
                self._breaker.call(lambda: None)
            return False
        # A call that was under way when the breaker opened says nothing of how the provider is now.
        return self.look().state == "half-open" and self.close()

    def failed(self, error: UnitError, quota_reset: Callable[[datetime], datetime]) -> float:
        """Record a failed call: seconds for which the breaker is open because of it, 0 if it stays as it was."""
        match error.kind:
            case ErrorKind.RATE_LIMITED:
                return self._opened(error.retry_after_s or RATE_LIMIT_S, "rate limit")
            case ErrorKind.QUOTA:
                now = datetime.now(UTC)
                wait_s = error.retry_after_s or (quota_reset(now) - now).total_seconds()
                return self._opened(wait_s, "daily quota")
            case ErrorKind.TRANSIENT:
                return self._count(error)
            case _:
                self.succeeded()
                return 0.0

    def _count(self, error: UnitError) -> float:
        if self._storage.state != pybreaker.STATE_CLOSED:
            # The probe of a half-open breaker failed, or a call that was under way when it opened.
            return self._opened(0.0, f"still failing: {error.code or error.kind}")

        def fail() -> NoReturn:
            raise error

        try:
            self._breaker.call(fail)
        except pybreaker.CircuitBreakerError:
            return self._opened(0.0, f"{self._policy.fail_max} failures in a row: {error.code or error.kind}")
        except UnitError:
            return 0.0

    def open(self, seconds: float, reason: str) -> float:
        """Open for `seconds` (0: a growing cool-down); never shortens. Returns the seconds that are left."""
        return self._open(seconds, reason)[0]

    def _opened(self, seconds: float, reason: str) -> float:
        """As `open`, but 0 if it was open for as long before."""
        left_s, is_news = self._open(seconds, reason)
        return left_s if is_news else 0.0

    def _open(self, seconds: float, reason: str) -> tuple[float, bool]:
        policy = self._policy
        arguments = [int(seconds * 1000), reason, int(policy.cool_down_s * 1000), int(policy.longest_s * 1000)]
        act = self._redis.register_script(script("breaker_open"))
        left_ms, is_news = act(keys=[self._key], args=cast("Any", arguments))
        self._breaker.open()
        return int(left_ms) / 1000, bool(is_news)

    def close(self) -> bool:
        """Close it, with its timer: a manual close must not be undone. True if it was not closed."""
        was_open = bool(self._redis.delete(self._key))
        if self._storage.state != pybreaker.STATE_CLOSED:
            self._breaker.close()
            was_open = True
        return was_open

    def half_open_if_due(self) -> bool:
        """What the watchdog does: an open breaker whose time is over becomes half-open. True if it did now."""
        if self._storage.state == pybreaker.STATE_OPEN and self.look().left_s <= 0:
            self._storage.state = pybreaker.STATE_HALF_OPEN
            return True
        return False

    def look(self) -> BreakerState:
        """How it stands. An open one whose time is over is half-open, whoever has noticed."""
        until, reason = cast("list[str | None]", self._redis.hmget(self._key, "until", "reason"))
        left_s = 0.0
        if until is not None:
            seconds, micros = self._redis.time()
            left_s = max(0.0, float(until) / 1000 - seconds - micros / 1e6)
        state = "closed" if until is None else "open" if left_s > 0 else "half-open"
        return BreakerState(self.name, state, reason or "", left_s, self._storage.counter)


class _Bytes:
    """The client as pybreaker wants it: its storage decodes by itself."""

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis

    def get(self, key: str) -> bytes | None:
        value = self._redis.get(key)
        return None if value is None else str(value).encode()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._redis, name)

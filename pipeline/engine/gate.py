"""The gate before each queue that calls a provider: pauses, breaker, sliding windows and concurrency in one admission.

An admission is a reservation. It counts until it is stamped, at the moment of the call, or given back; the windows
then count stamps. So the provider never sees more than the limit in any window, however late a worker gets to its
call. All times are the Redis server's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from redis import Redis

from pipeline.engine.leases import script

MAX_WINDOWS = 4
RESERVATION_TTL_S = 30.0
"""How long an admitted message may take until its call; later it is asked for again."""
FOR_EVER = -1


class Unit(StrEnum):
    """What a window counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True)
class Window:
    """At most `limit` requests or tokens in any `window_s` seconds."""

    limit: int
    window_s: float
    unit: Unit = Unit.REQUESTS


@dataclass(frozen=True)
class Admission:
    """Let through or not. `wait_s`: when to ask again. `reason`: operator, spend,
    breaker, probe, limit, concurrency, or unready: Redis was emptied and its limits are not back yet."""

    granted: bool
    wait_s: float
    reason: str
    stamp: int = 0


@dataclass(frozen=True)
class WindowState:
    """A window, and how much of it is used."""

    window: Window
    used: int


@dataclass(frozen=True)
class GateState:
    """How a gate stands. Times are seconds from now; None: not closed by this; infinity: until further notice."""

    in_flight: int
    reserved: int
    operator_s: float | None
    operator_reason: str
    spend_s: float | None
    spend_reason: str
    breaker_s: float | None
    breaker_reason: str
    windows: list[WindowState]

    @property
    def closed_by(self) -> str:
        """`operator`, `spend`, `breaker`, or empty."""
        closed = (("operator", self.operator_s), ("spend", self.spend_s), ("breaker", self.breaker_s))
        return next((name for name, left_s in closed if left_s is not None and left_s > 0), "")


class Gate:
    """The gate of one queue. `breaker`: the name of the breaker that closes it, shared by queues of one provider."""

    def __init__(self, redis: "Redis", queue: str, breaker: str, slot_ttl_s: float) -> None:
        self.queue = queue
        self._redis = redis
        self._slot_ttl_ms = int(slot_ttl_s * 1000)
        base = f"penstock:{{gates}}:{queue}"
        self._hash = f"{base}:gate"
        windows = [f"{base}:window{n}" for n in range(1, MAX_WINDOWS + 1)]
        self._keys = [self._hash, f"{base}:slots", f"{base}:reserved", breaker_key(breaker), *windows]

    def admit(self, holder: str, cost: int = 1, tokens: int = 0) -> Admission:
        """Ask for a slot and room in every window. Asking again with the same holder replaces what it has."""
        return self._ask("gate_admit", holder, cost, tokens)

    def stamp(self, holder: str, cost: int = 1, tokens: int = 0) -> Admission:
        """Say that the call is made now. If it is refused, everything is given back and no call may be made."""
        return self._ask("gate_stamp", holder, cost, tokens)

    def sent(self, stamp: int, cost: int = 1, tokens: int = 0) -> None:
        """Say that the request of a stamp has been handed over only now."""
        self._run("gate_sent", stamp, cost, tokens)

    def finish(self, holder: str, extra_tokens: int = 0) -> None:
        """Give the slot back, after the call or instead of it. `extra_tokens`: used minus stamped."""
        self._run("gate_finish", holder, extra_tokens)

    def configure(self, windows: Sequence[Window], concurrency: int | None) -> None:
        """Set the limits; they hold from the next admission on. What was used stays used."""
        fields: dict[str, str | int] = {"ready": 1}
        for n, window in enumerate(windows, 1):
            fields |= {f"limit{n}": window.limit, f"ms{n}": int(window.window_s * 1000), f"unit{n}": window.unit.value}
        if concurrency is not None:
            fields["concurrency"] = concurrency
        names = [f"{name}{n}" for n in range(1, MAX_WINDOWS + 1) for name in ("limit", "ms", "unit")]
        unset = [name for name in [*names, "concurrency"] if name not in fields]
        with self._redis.pipeline() as pipe:
            pipe.hset(self._hash, mapping=cast("Any", fields))
            if unset:
                pipe.hdel(self._hash, *unset)
            pipe.execute()

    def ready(self) -> bool:
        """Whether limits were set since Redis was emptied."""
        return bool(self._redis.hexists(self._hash, "ready"))

    def close(self, by: str, until_ms: int, reason: str = "") -> None:
        """Close for an operator or a spend cap, until a moment (epoch ms) or `FOR_EVER`."""
        self._redis.hset(self._hash, mapping={f"{by}_until": until_ms, f"{by}_reason": reason})

    def reopen(self, by: str) -> None:
        """End what `close` with the same `by` began; never another's."""
        self._redis.hdel(self._hash, f"{by}_until", f"{by}_reason")

    def look(self) -> GateState:
        """How the gate stands."""
        found = self._run("gate_look")
        now = int(found[8])

        def left_s(value: str) -> float | None:
            if value == "":
                return None
            return float("inf") if int(value) < 0 else (int(value) - now) / 1000

        windows = [found[start : start + 4] for start in range(9, 9 + 4 * MAX_WINDOWS, 4)]
        return GateState(
            in_flight=int(found[0]), reserved=int(found[1]), operator_s=left_s(found[2]), operator_reason=found[3],
            spend_s=left_s(found[4]), spend_reason=found[5], breaker_s=left_s(found[6]), breaker_reason=found[7],
            windows=[
                WindowState(Window(int(limit), int(ms) / 1000, Unit(unit)), int(used))
                for limit, used, ms, unit in windows
                if limit != ""
            ],
        )  # fmt: skip

    def _ask(self, name: str, holder: str, cost: int, tokens: int) -> Admission:
        granted, wait_ms, reason, *stamp = self._run(
            name, holder, cost, tokens, int(RESERVATION_TTL_S * 1000), self._slot_ttl_ms
        )
        return Admission(bool(granted), int(wait_ms) / 1000, str(reason), *stamp)

    def _run(self, name: str, *arguments: str | int) -> Any:
        act = self._redis.register_script(script("gate_lib") + script(name))
        return act(keys=self._keys, args=list(arguments))


def breaker_key(breaker: str) -> str:
    """The hash that closes the gates of all queues of a provider's capability."""
    return f"penstock:{{gates}}:breaker:{breaker}"

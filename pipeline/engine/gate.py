"""The gate of a queue that calls a provider: pauses, breaker, sliding windows and concurrency in one admission.

An admission is a reservation. It counts until it is given back, or becomes a stamp: the call is made, and counts. The
stamp has the time when its request was handed over, and does not age before. So the provider never sees more than the
limit in any window, however late a worker makes its call. All times are the Redis server's.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from redis import Redis

from pipeline.engine.leases import script

MAX_WINDOWS = 4
_EARLY_TRIES = 10
RESERVATION_TTL_S = 30.0
"""How long an admitted message may take to its call; after that it must ask again."""
AHEAD_S = 0.1
"""Admit a message this much before room frees up: it takes some time to its call. The stamp is exact: a call that is
early waits."""
WAKE_TTL_S = 2.0
"""How long a token that wakes a worker is kept for it."""
FOR_EVER = -1
CLOSED_BY = {"spend": "the spend cap", "breaker": "its breaker", "operator": "an operator", "limits": "its limits"}
"""What closes a queue, in words."""
_LACKS_RECORD = 2


class Unit(StrEnum):
    """What a window counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"


Usage = Mapping[Unit, Sequence[tuple[int, int]]]
"""By unit: how long ago calls were made, in ms, and how much each used."""


@dataclass(frozen=True)
class Window:
    """At most `limit` requests or tokens in any `window_s` seconds."""

    limit: int
    window_s: float
    unit: Unit = Unit.REQUESTS


@dataclass(frozen=True)
class Admission:
    """A gate's answer. `wait_s`: when to ask again. `reason` of a refusal: operator, spend, breaker, probe, limit,
    concurrency, or unready: Redis was emptied and its limits are not back yet."""

    granted: bool
    wait_s: float
    reason: str
    stamp: int = 0


@dataclass(frozen=True)
class Made:
    """A call that was made: the number of its stamps, what they count, and how long ago they were made."""

    stamp: int
    cost: int
    tokens: int
    age_s: float


@dataclass(frozen=True)
class WindowState:
    """A window, and how much of it is used. `next_s`: until there is room for one more; 0 if there is."""

    window: Window
    used: int
    next_s: float = 0.0


@dataclass(frozen=True)
class ScopeState:
    """The state of a scope. Times are seconds from now; None: not closed by this; infinity: until further notice."""

    in_flight: int
    reserved: int
    operator_s: float | None
    operator_reason: str
    spend_s: float | None
    spend_reason: str
    windows: list[WindowState]


@dataclass(frozen=True)
class GateState:
    """The state of a gate: its queue's, its provider's, and the breaker's."""

    queue: ScopeState
    provider: ScopeState
    breaker_s: float | None
    breaker_reason: str

    @property
    def in_flight(self) -> int:
        """Messages of the queue that were admitted and are not done."""
        return self.queue.in_flight

    @property
    def windows(self) -> list[WindowState]:
        """What holds for the queue: its own windows, then its provider's."""
        return self.queue.windows + self.provider.windows

    @property
    def closed(self) -> tuple[str, float, str] | None:
        """(`operator`, `spend` or `breaker`; seconds left; reason), or None."""
        own, shared = self.queue, self.provider
        found = (
            ("operator", own.operator_s, own.operator_reason),
            ("operator", shared.operator_s, shared.operator_reason),
            ("spend", shared.spend_s, shared.spend_reason),
            ("breaker", self.breaker_s, self.breaker_reason),
        )
        return next(((by, left_s, why) for by, left_s, why in found if left_s is not None and left_s > 0), None)

    @property
    def closed_by(self) -> str:
        """`operator`, `spend`, `breaker`, or empty."""
        return self.closed[0] if self.closed else ""


class Scope:
    """Limits and pauses of a queue, or of all queues of a provider."""

    def __init__(self, redis: "Redis", name: str) -> None:
        self._redis = redis
        base = f"penstock:{{gates}}:{name}"
        self._hash = f"{base}:gate"
        self.keys = [self._hash, f"{base}:slots", f"{base}:reserved"]
        self.keys += [f"{base}:window{n}" for n in range(1, MAX_WINDOWS + 1)]
        self.keys.append(f"{base}:line")

    def configure(
        self,
        windows: Sequence[Window] | None,
        concurrency: int | None,
        fields: Mapping[str, str | float] | None = None,
        *,
        version: int = 0,
        on_record: Callable[[float], Usage] | None = None,
    ) -> bool:
        """Set what holds for the next admissions. What was used stays used. False: something newer holds.

        `windows` and `concurrency`: None for no limits of concurrency, and for windows and concurrency that stay as
        they are. `fields`: of pauses and caps; an empty text removes one. `version`: the older never overwrites the
        newer. `on_record`: the calls of the last so many seconds, for windows that are new or lost; without it, they
        begin anew.
        """
        values: dict[str, str | float] = dict(fields or {})
        wanted = ""
        if windows is not None:
            values["concurrency"] = "" if concurrency is None else concurrency
            wanted = json.dumps(
                [{"limit": each.limit, "ms": int(each.window_s * 1000), "unit": each.unit} for each in windows]
            )
        act = self._redis.register_script(script("gate_configure"))
        arguments: list[str | int] = [version, json.dumps(values), wanted]
        done, lacking_ms = act(keys=self.keys, args=[*arguments, "" if on_record else "{}"])
        if done == _LACKS_RECORD and on_record:
            done, _ = act(keys=self.keys, args=[*arguments, json.dumps(on_record(lacking_ms / 1000))])
        if done:
            self.wake()
        return bool(done)

    def ready(self) -> bool:
        """Whether limits were set since Redis was emptied."""
        return bool(self._redis.hexists(self._hash, "ready"))

    def close(self, by: str, until_ms: int, reason: str = "") -> None:
        """Close for an operator or a spend cap, until a moment (epoch ms) or `FOR_EVER`."""
        self._redis.hset(self._hash, mapping={f"{by}_until": until_ms, f"{by}_reason": reason})

    def reopen(self, by: str) -> None:
        """End what `close` with the same `by` began; never another's."""
        if self._redis.hdel(self._hash, f"{by}_until", f"{by}_reason"):
            self.wake()

    def wake(self) -> None:
        """Have everybody ask again who waits because of this scope."""
        self._redis.register_script(script("gate_wake"))(keys=[self.keys[-1]], args=[int(WAKE_TTL_S * 1000)])


class Gate:
    """The gate of one queue: its own limits (`own`), and those of all queues of its provider (`shared`)."""

    def __init__(self, redis: "Redis", queue: str, breaker: str, slot_ttl_s: float) -> None:
        """`breaker`: its name, `provider:capability`; it closes all queues that use this capability."""
        self.queue = queue
        self._redis = redis
        self._slot_ttl_ms = int(slot_ttl_s * 1000)
        self.own = Scope(redis, f"queue:{queue}")
        self.shared = provider_scope(redis, breaker.partition(":")[0])
        self._keys = [*self.own.keys, *self.shared.keys, breaker_key(breaker)]

    def admit(self, holder: str, cost: int = 1, tokens: int = 0, wake: str = "") -> Admission:
        """Ask for a slot and room in every window. Asking again replaces what the holder has.

        `wake`: a list of the worker's own. If this is refused, a message in that list, with the queue's name as its
        delivery tag, says when it may be the worker's turn; those who wait before it count in `wait_s`."""
        return self._ask("gate_admit", holder, cost, tokens, f"{wake} {self.queue}" if wake else "")

    def stamp(self, holder: str, cost: int = 1, tokens: int = 0) -> Admission:
        """Count the call as made; `sent` follows. If it is refused, everything is given back and no call may be made.

        A call that is early waits here for a fraction of a second."""
        for _ in range(_EARLY_TRIES):
            admission = self._ask("gate_stamp", holder, cost, tokens)
            if admission.reason != "early":
                return admission
            time.sleep(admission.wait_s)
        self.finish(holder)
        return replace(admission, reason="limit")

    def sent(self, holder: str, made: Made | None = None) -> None:
        """Note that the request of the holder's call was sent: its stamp ages from now on.

        `made`: the call, whose stamps are put back if Redis was emptied since its admission."""
        self._run("gate_sent", holder, *((made.stamp, made.cost, made.tokens) if made else (0, 0, 0)))

    def finish(self, holder: str, extra_tokens: int = 0, made: Made | None = None) -> None:
        """Give the slot back, after the call or instead of it. `extra_tokens`: used minus stamped.

        `made`: the call, whose stamps are put back if Redis was emptied during it."""
        call = (made.stamp, made.cost, made.tokens, int(made.age_s * 1000)) if made else (0, 0, 0, 0)
        self._run("gate_finish", holder, extra_tokens, *call)

    def workers(self) -> set[str]:
        """The workers whose messages have a slot: a holder is `worker/message`."""
        return {holder.rpartition("/")[0] for holder in self._holders()}

    def finish_all(self, workers: Collection[str]) -> None:
        """Free the slots of dead workers. A call of theirs that is not marked as sent counts as sent now."""
        for holder in self._holders():
            if holder.rpartition("/")[0] in workers:
                self.finish(holder)

    def _holders(self) -> list[str]:
        return [str(holder) for holder in self._redis.zrange(self.own.keys[1], 0, -1)]

    def look(self) -> GateState:
        """The state of the gate."""
        now, breaker_until, breaker_reason, *scopes = self._run("gate_look")
        half = len(scopes) // 2

        def left_s(value: str) -> float | None:
            if value == "":
                return None
            return float("inf") if int(value) < 0 else (int(value) - int(now)) / 1000

        def state(found: list[Any]) -> ScopeState:
            rows = [found[start : start + 5] for start in range(6, len(found), 5)]
            return ScopeState(
                int(found[0]),
                int(found[1]),
                left_s(found[2]),
                found[3],
                left_s(found[4]),
                found[5],
                [
                    WindowState(Window(int(limit), int(ms) / 1000, Unit(unit)), int(used), int(next_ms) / 1000)
                    for limit, used, ms, unit, next_ms in rows
                    if limit != ""
                ],
            )

        return GateState(state(scopes[:half]), state(scopes[half:]), left_s(breaker_until), breaker_reason)

    def _ask(self, name: str, holder: str, cost: int, tokens: int, *further: str) -> Admission:
        granted, wait_ms, reason, *stamp = self._run(
            name, holder, cost, tokens, int(RESERVATION_TTL_S * 1000), self._slot_ttl_ms, int(AHEAD_S * 1000), *further
        )
        return Admission(bool(granted), int(wait_ms) / 1000, str(reason), *stamp)

    def _run(self, name: str, *arguments: str | int) -> Any:
        act = self._redis.register_script(script("gate_lib") + script(name))
        return act(keys=self._keys, args=list(arguments))


def provider_scope(redis: "Redis", provider: str) -> Scope:
    """The limits and pauses of all queues of a provider."""
    return Scope(redis, f"provider:{provider}")


def breaker_key(breaker: str) -> str:
    """The hash that closes the gates of all queues of a provider's capability."""
    return f"penstock:{{gates}}:breaker:{breaker}"

"""The gate of a queue that calls a provider: pauses, breaker, sliding windows and concurrency in one admission.

An admission is a reservation. It counts until the worker gives it back, or turns it into a stamp for a call. The
stamp starts to age when the worker hands its request to the network. So the provider never sees more calls than the
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
"""How long an admission waits for its call; after that the message must ask again."""
AHEAD_S = 0.1
"""Admit a message this much before room frees up, because it takes time to make its call. The stamp is exact: an early
call waits."""
WAKE_TTL_S = 2.0
"""How long a token that wakes a worker stays in its list."""
FOR_EVER = -1
CLOSED_BY = {"spend": "the spend cap", "breaker": "its breaker", "operator": "an operator", "limits": "its limits"}
"""Names of the reasons why a queue is closed, for people."""
_LACKS_RECORD = 2


class Unit(StrEnum):
    """The unit that a window counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"


Usage = Mapping[Unit, Sequence[tuple[int, int]]]
"""By unit: the age of each call in ms, and its amount."""


@dataclass(frozen=True)
class Window:
    """At most `limit` requests or tokens in any `window_s` seconds."""

    limit: int
    window_s: float
    unit: Unit = Unit.REQUESTS


@dataclass(frozen=True)
class Admission:
    """A gate's answer. `wait_s`: seconds until the next try. `reason` of a refusal: operator, spend, breaker, probe,
    limit, concurrency, or unready: Redis was emptied and its limits are not back yet."""

    granted: bool
    wait_s: float
    reason: str
    stamp: int = 0


@dataclass(frozen=True)
class StampedCall:
    """A stamped call: the number of its stamps, the amounts that they count, and their age."""

    stamp: int
    cost: int
    tokens: int
    age_s: float


@dataclass(frozen=True)
class WindowState:
    """A window and its usage. `next_s`: seconds until it has room for one more; 0: now."""

    window: Window
    used: int
    next_s: float = 0.0


@dataclass(frozen=True)
class ScopeState:
    """The state of a scope. Times are seconds from now; None: does not close it; infinity: until further notice."""

    in_flight: int
    reserved: int
    operator_s: float | None
    operator_reason: str
    spend_s: float | None
    spend_reason: str
    windows: list[WindowState]


@dataclass(frozen=True)
class GateState:
    """The state of a gate: its queue, its provider and the breaker."""

    queue: ScopeState
    provider: ScopeState
    breaker_s: float | None
    breaker_reason: str

    @property
    def in_flight(self) -> int:
        """The number of admitted messages of the queue that are not done."""
        return self.queue.in_flight

    @property
    def windows(self) -> list[WindowState]:
        """All windows of the queue: its own, then its provider's."""
        return self.queue.windows + self.provider.windows

    @property
    def closed(self) -> tuple[str, float, str] | None:
        """The reason why the gate is closed: (`operator`, `spend` or `breaker`, the first in this order; seconds left,
        infinity until further notice; its text). None if it is open, also while its limits are used up."""
        own, shared = self.queue, self.provider
        reasons = (
            ("operator", own.operator_s, own.operator_reason),
            ("operator", shared.operator_s, shared.operator_reason),
            ("spend", shared.spend_s, shared.spend_reason),
            ("breaker", self.breaker_s, self.breaker_reason),
        )
        return next(((by, left_s, why) for by, left_s, why in reasons if left_s is not None and left_s > 0), None)

    @property
    def closed_by(self) -> str:
        """`operator`, `spend` or `breaker`; empty if it is not closed."""
        return self.closed[0] if self.closed else ""


class Scope:
    """Limits and pauses of one queue, or of all queues of one provider."""

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
        """Set limits and pauses for the next admissions; recorded usage stays. False, with nothing changed: a newer
        version holds.

        `windows` None: windows and concurrency stay as they are. `concurrency` None: no limit. `fields`: pauses and
        caps; an empty text removes a field. `version`: an older one never overwrites a newer; 0 applies in any case.
        `on_record`: returns the recorded calls of the last so many seconds, to fill new or lost windows; without it
        these start empty.
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
        """Whether limits have been set since Redis was last emptied."""
        return bool(self._redis.hexists(self._hash, "ready"))

    def close(self, by: str, until_ms: int, reason: str = "") -> None:
        """Close the scope for `by`, `operator` or `spend`, until a time (epoch ms) or `FOR_EVER`; replace its earlier
        pause by the same `by`. `reason`: for people."""
        self._redis.hset(self._hash, mapping={f"{by}_until": until_ms, f"{by}_reason": reason})

    def reopen(self, by: str) -> None:
        """End the pause that `close` began with the same `by`; leave other pauses."""
        if self._redis.hdel(self._hash, f"{by}_until", f"{by}_reason"):
            self.wake()

    def wake(self) -> None:
        """Make every worker that waits for this scope ask again."""
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
        """Ask for a slot, and for room for `cost` requests and `tokens` tokens in every window, which it reserves;
        never waits. A repeated call replaces the holder's reservation.

        `wake`: the worker's own list. After a refusal, a message in that list, with the queue's name as its delivery
        tag, tells the worker to try again; `wait_s` counts the workers that wait before it.
        """
        return self._ask("gate_admit", holder, cost, tokens, f"{wake} {self.queue}" if wake else "")

    def stamp(self, holder: str, cost: int = 1, tokens: int = 0) -> Admission:
        """Count the holder's call in every window (its stamp) instead of its reservation, just before the request is
        sent; call `sent` next. A refusal gives back slot and reservation, and forbids the call.

        Waits a fraction of a second here if the call is early.
        """
        for _ in range(_EARLY_TRIES):
            admission = self._ask("gate_stamp", holder, cost, tokens)
            if admission.reason != "early":
                return admission
            time.sleep(admission.wait_s)
        self.finish(holder)
        return replace(admission, reason="limit")

    def sent(self, holder: str, call: StampedCall | None = None) -> None:
        """Note that the holder's request was sent: its stamp ages from now on.

        `call`: the call, to restore its stamps if Redis was emptied since its admission."""
        self._run("gate_sent", holder, *((call.stamp, call.cost, call.tokens) if call else (0, 0, 0)))

    def finish(self, holder: str, extra_tokens: int = 0, call: StampedCall | None = None) -> None:
        """Give the slot back, after the call or without one. `extra_tokens`: used minus stamped.

        `call`: the call, to restore its stamps if Redis was emptied during it."""
        stamps = (call.stamp, call.cost, call.tokens, int(call.age_s * 1000)) if call else (0, 0, 0, 0)
        self._run("gate_finish", holder, extra_tokens, *stamps)

    def workers(self) -> set[str]:
        """The ids of the workers whose messages have a slot of this queue. A holder is `worker/message`."""
        return {holder.rpartition("/")[0] for holder in self._holders()}

    def finish_all(self, workers: Collection[str]) -> None:
        """Free the slots of dead workers. Their calls without a note of `sent` count as sent now."""
        for holder in self._holders():
            if holder.rpartition("/")[0] in workers:
                self.finish(holder)

    def _holders(self) -> list[str]:
        return [str(holder) for holder in self._redis.zrange(self.own.keys[1], 0, -1)]

    def inspect(self) -> GateState:
        """Return the state of the gate, without changing it."""
        now, breaker_until, breaker_reason, *scopes = self._run("gate_look")
        half = len(scopes) // 2

        def left_s(value: str) -> float | None:
            if value == "":
                return None
            return float("inf") if int(value) < 0 else (int(value) - int(now)) / 1000

        def state(values: list[Any]) -> ScopeState:
            rows = [values[start : start + 5] for start in range(6, len(values), 5)]
            return ScopeState(
                int(values[0]),
                int(values[1]),
                left_s(values[2]),
                values[3],
                left_s(values[4]),
                values[5],
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
    """The key of the hash that closes the gates of all queues of a provider's capability."""
    return f"penstock:{{gates}}:breaker:{breaker}"

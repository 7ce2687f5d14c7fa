"""Messages on their way, as numbered places in the broker's Redis.

A scope has numbered places in each queue of its work, such as a document's lanes. A place waits (its message
is in the queue) or works. A launch reserves the missing places, and then publishes one message for each:
so a scope never has more messages under way than places. Submit, resume, wake-ups and the sweep all call `launch`.

When is a waiting message lost? Timers cannot tell: a long queue looks like a loss. It is lost once its queue has turned
over without it, when workers have handled more messages since than were before it; or if its queue is empty 5 s after
its launch. Before a closed gate no worker handles messages, so none count as lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from redis import Redis

from pipeline.engine.leases import script
from pipeline.engine.presence import PRESENCE_KEYS

DELIVERED_KEY = "penstock:places:delivered"
"""Messages that workers handled or gave back lately: see `place_lib.lua`."""
_UNACKED_KEY = "unacked"
"""Kombu's key of messages that were delivered and are not acknowledged."""


@dataclass(frozen=True)
class Place:
    """One place of a scope in a queue. `priority`: kombu's step (0, 3, 6 or 9) of its message."""

    scope: str
    queue: str
    number: int = 0
    priority: int = 0


@dataclass(frozen=True)
class Wanted:
    """How many places a scope needs in a queue now."""

    scope: str
    queue: str
    places: int = 1
    priority: int = 0


def launch(places: "Places", wanted: Sequence[Wanted], publish: Callable[[int, Sequence[int]], None]) -> int:
    """Send the missing messages; return their number. All messages of work pass here.

    `publish(at, numbers)` sends one message for each of these places of `wanted[at]`. If it raises, unpublished
    messages count as sent until the queue has turned over without them.
    """
    sent = 0
    for at, numbers in enumerate(places.reserve(wanted)):
        if numbers:
            publish(at, numbers)
            sent += len(numbers)
    return sent


class Places:
    """The places of all scopes in one broker."""

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._shared = [DELIVERED_KEY, *PRESENCE_KEYS, _UNACKED_KEY]

    def reserve(self, wanted: Sequence[Wanted]) -> list[list[int]]:
        """Reserve the places that each scope lacks, so that no other process sends for them; return the reserved
        numbers of each, in the order of `wanted`."""
        if not wanted:
            return []
        keys = [*self._shared, *(_key(need.scope) for need in wanted)]
        arguments: list[str | int] = []
        for need in wanted:
            arguments += [need.queue, need.priority, need.places]
        return cast("list[list[int]]", self._run("place_reserve", keys, arguments))

    def begin(self, place: Place, holder: str, ttl_s: float, dead_holder: str = "") -> str:
        """Take the place of an arrived message. Return "" if that succeeded, or the place's other live holder: then
        drop the message.

        `holder`: `process/message`. `dead_holder`: a holder that the caller knows is dead; pass it on the second try.
        """
        arguments: list[str | int] = [place.queue, place.number, place.priority, holder, int(ttl_s * 1000), dead_holder]
        return str(self._run("place_begin", [*self._shared, _key(place.scope)], arguments))

    def wait(self, place: Place, holder: str = "") -> bool:
        """Note that the caller is about to send the place's message. False: another live holder has the place; send
        nothing. `holder`: the caller's own, if it has the place itself."""
        arguments: list[str | int] = [place.queue, place.number, place.priority, holder]
        return bool(self._run("place_wait", [*self._shared, _key(place.scope)], arguments))

    def known(self, scopes: Sequence[str]) -> set[str]:
        """The scopes among these that have a place: a worker holds it, or its message is on its way."""
        with self._redis.pipeline(transaction=False) as pipe:
            for scope in scopes:
                pipe.exists(_key(scope))
            return {scope for scope, exists in zip(scopes, pipe.execute(), strict=True) if exists}

    def leave(self, place: Place, holder: str) -> None:
        """Free the place after its message's last work, if this holder has it."""
        self._redis.register_script(script("place_leave"))(
            keys=[_key(place.scope)], args=[f"{place.queue}|{place.number}", holder]
        )

    def _run(self, name: str, keys: Sequence[str], arguments: Sequence[str | int]) -> object:
        act = self._redis.register_script(script("place_lib") + script(name))
        return cast("object", act(keys=list(keys), args=list(arguments)))


def _key(scope: str) -> str:
    return f"penstock:places:{scope}"

"""Which messages are on their way: numbered places, remembered in the broker's Redis.

A scope has numbered places in each queue that its work goes to, such as a document's lanes. A place waits (its message
is in the queue) or is at work. Sending reserves the places that are missing, and then publishes one message for each:
so a scope never has more messages under way than places. Submit, resume, wake-ups and the sweeper all send by `launch`.

When is a waiting message lost? Timers cannot tell: a long queue looks like a loss. It is lost when its queue has turned
over without it, so that more messages were worked on since than were before it; or when its queue is empty 5 s after it
was sent. Before a closed gate nothing is worked on, so nothing is lost.
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
"""Where kombu keeps what was delivered and not acknowledged."""


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
    """Send the messages that are missing; how many. The only way in which work's messages are sent.

    `publish(at, numbers)` sends one message for each of these places of `wanted[at]`. If it raises, what was not
    published counts as sent until the queue has turned over without it.
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
        """The numbers of the places that each of them lacks: reserved now, so that nobody else sends messages there."""
        if not wanted:
            return []
        keys = [*self._shared, *(_key(one.scope) for one in wanted)]
        arguments: list[str | int] = []
        for one in wanted:
            arguments += [one.queue, one.priority, one.places]
        return cast("list[list[int]]", self._run("place_reserve", keys, arguments))

    def begin(self, place: Place, holder: str, ttl_s: float, gone: str = "") -> str:
        """Take the place of a message that has arrived. Empty, or the living other who has it: then do nothing.

        `holder`: `process/message`. `gone`: one of whom the caller knows that it is no more; asked for the second time.
        """
        arguments: list[str | int] = [place.queue, place.number, place.priority, holder, int(ttl_s * 1000), gone]
        return str(self._run("place_begin", [*self._shared, _key(place.scope)], arguments))

    def wait(self, place: Place, holder: str = "") -> bool:
        """Note that a message is about to be sent for the place; False: a living other has it, so send nothing."""
        arguments: list[str | int] = [place.queue, place.number, place.priority, holder]
        return bool(self._run("place_wait", [*self._shared, _key(place.scope)], arguments))

    def known(self, scopes: Sequence[str]) -> set[str]:
        """Those of these scopes that have a place: somebody is at work, or a message is on its way."""
        with self._redis.pipeline(transaction=False) as pipe:
            for scope in scopes:
                pipe.exists(_key(scope))
            return {scope for scope, there in zip(scopes, pipe.execute(), strict=True) if there}

    def leave(self, place: Place, holder: str) -> None:
        """Nothing more is to be done in this place."""
        self._redis.register_script(script("place_leave"))(
            keys=[_key(place.scope)], args=[f"{place.queue}|{place.number}", holder]
        )

    def _run(self, name: str, keys: Sequence[str], arguments: Sequence[str | int]) -> object:
        act = self._redis.register_script(script("place_lib") + script(name))
        return cast("object", act(keys=list(keys), args=list(arguments)))


def _key(scope: str) -> str:
    return f"penstock:places:{scope}"

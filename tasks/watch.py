"""Waiting for work of any flow: looked at again when an event concerns it, at the latest after a second."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from redis import RedisError

from pipeline.engine import events
from pipeline.storage.context import get_context

Found = TypeVar("Found")
LOOK_AGAIN_S = 1.0
"""The longest time between two looks: events only make it shorter."""


def watch(
    look: Callable[[], Found],
    outstanding: Callable[[Found], int],
    concerns: Callable[[dict[str, str]], bool],
    *,
    undone: str,
    timeout_s: float | None = None,
    idle: Callable[[], object] = lambda: None,
) -> Iterator[Found]:
    """What `look` gives, again and again, until nothing of it is `outstanding`.

    `concerns` says of an event (its fields) whether it is worth a look. `idle` is called about once a second. Raises
    `TimeoutError`, in the words `N {undone} after …`, after `timeout_s` seconds.
    """
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    listener = _Listener()
    looked = time.monotonic()
    while True:
        found = look()
        yield found
        left = outstanding(found)
        if not left:
            return
        left_s = min(LOOK_AGAIN_S, deadline - time.monotonic())
        if left_s <= 0:
            raise TimeoutError(f"{left} {undone} after {timeout_s} s")
        listener.pause(concerns, left_s)
        if time.monotonic() - looked >= LOOK_AGAIN_S:
            looked = time.monotonic()
            idle()


class _Listener:
    """Waits for an event, or just waits while Redis is away."""

    def __init__(self) -> None:
        self._redis = get_context().redis
        try:
            self._after = events.last_id(self._redis)
        except RedisError:
            self._after = "$"

    def pause(self, concerns: Callable[[dict[str, str]], bool], longest_s: float) -> None:
        deadline = time.monotonic() + longest_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                for event_id, fields in events.read(self._redis, self._after, left_s):
                    self._after = event_id
                    if concerns(fields):
                        return
            except RedisError:
                time.sleep(min(left_s, 0.5))

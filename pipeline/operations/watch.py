"""Waiting for work of any flow: reads its state after each relevant event, and at least once a second.

It also checks that a worker runs. Redis may be unreachable: the clients here fail at once, because the caller
decides how long to wait.
"""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import TypeVar

from redis import Redis, RedisError

from pipeline.engine import events
from pipeline.engine.connection import connect
from pipeline.engine.errors import NoWorkerWarning
from pipeline.engine.presence import NoWorker, Presence
from pipeline.process import get_context

State = TypeVar("State")
LONGEST_PAUSE_S = 1.0
"""The longest time between two reads of the state; events shorten it."""
_OURS = ("tasks.", "pipeline.")


class Fleet:
    """Whether a worker runs, as a waiting program has checked."""

    def __init__(self) -> None:
        self.no_worker: NoWorker | None = None
        """Set after two checks in a row without a worker: at the first, a worker may start, or Redis be emptied."""
        self.missed: NoWorker | None = None
        """Set if the last check found no worker."""
        self._warned = False

    def check(self, redis: "Redis") -> None:
        """Check for workers; warn the waiting program the first time that two checks in a row find none."""
        before, self.missed = self.missed, _no_worker(redis)
        self.no_worker = self.missed if before else None
        if self.no_worker and not self._warned:
            self._warned = True
            warnings.warn(f"{self.no_worker} Until then, the work does not continue.", NoWorkerWarning, _level())


def _no_worker(redis: "Redis") -> NoWorker | None:
    context = get_context()
    if context.settings.embedded_redis:  # a supervisor starts the workers beside it
        down = f"No stack runs on {context.settings.data_dir}: start it with `penstock up`."
        return None if context.online else NoWorker(down)
    try:
        return None if Presence(redis).alive() else NoWorker()
    except RedisError:
        return NoWorker("Redis is unreachable, so workers get no messages: see `penstock doctor`.")


def _level() -> int:
    """The `stacklevel` of the line in the program that called Penstock, for a warning by our caller."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # `skip_file_prefixes` needs Python 3.12
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_OURS):
        frame, level = frame.f_back, level + 1
    return level


def watch(
    read: Callable[[], State],
    outstanding: Callable[[State], int],
    concerns: Callable[[dict[str, str]], bool],
    *,
    undone: tuple[str, str],
    timeout_s: float | None = None,
    idle: Callable[[], object] = lambda: None,
    fleet: Fleet | None = None,
) -> Iterator[State]:
    """Yield each result of `read`, changed or not, until none of its work is `outstanding`.

    Reads after each event that `concerns` accepts by its fields, and at least once a second. Calls `idle` and checks
    the `fleet` about once a second. Raises `TimeoutError` after `timeout_s` seconds, as `N {undone} after …`, with the
    text for one or for several.
    """
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    fleet = fleet or Fleet()
    with Listener() as listener:
        checked = -float("inf")
        while True:
            state = read()
            yield state
            unfinished = outstanding(state)
            if not unfinished:
                return
            if time.monotonic() - checked >= LONGEST_PAUSE_S:
                if checked > 0:
                    idle()
                checked = time.monotonic()
                fleet.check(listener.redis)
            left_s = min(LONGEST_PAUSE_S, deadline - time.monotonic())
            if left_s <= 0:
                raise TimeoutError(
                    f"{unfinished} {undone[unfinished != 1]} after {timeout_s} s"
                    + (f". {fleet.missed}" if fleet.missed else "")
                )
            listener.pause(concerns, left_s)


class Listener:
    """Waits for an event, or just pauses while Redis is unreachable."""

    def __init__(self) -> None:
        self.redis = connect(get_context().settings.effective_redis_url, retries=0)
        self._after = ""

    def __enter__(self) -> "Listener":
        with suppress(RedisError):
            if get_context().online:
                self._after = events.last_id(self.redis)
        return self

    def __exit__(self, *_: object) -> None:
        self.redis.close()

    def pause(self, concerns: Callable[[dict[str, str]], bool], longest_s: float) -> None:
        deadline = time.monotonic() + longest_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                self._after = self._after or events.last_id(self.redis)
                for event_id, fields in events.read(self.redis, self._after, left_s):
                    self._after = event_id
                    if concerns(fields):
                        return
            except RedisError:
                time.sleep(min(left_s, 0.5))

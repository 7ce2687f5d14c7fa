"""Waiting for work of any flow: looked at again when an event concerns it, at the latest after a second.

Meanwhile it is seen to that somebody is there to work. Redis may be away: its clients here fail at once, since how
long to wait is the caller's choice.
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

Found = TypeVar("Found")
LOOK_AGAIN_S = 1.0
"""The longest time between two looks: events only make it shorter."""
_OURS = ("tasks.", "pipeline.")


class Fleet:
    """Whether anybody is there to work, as far as somebody who waits has seen."""

    def __init__(self) -> None:
        self.no_worker: NoWorker | None = None
        """Nobody was there twice in a row: a worker may be starting just now, and Redis have been emptied."""
        self.missed: NoWorker | None = None
        """Nobody was there at the last look."""
        self._warned = False

    def look(self, redis: "Redis") -> None:
        """Look again; the first time that nobody is there to work, warn the program that waits."""
        before, self.missed = self.missed, _nobody(redis)
        self.no_worker = self.missed if before else None
        if self.no_worker and not self._warned:
            self._warned = True
            warnings.warn(f"{self.no_worker} Until then, what is waited for stays as it is.", NoWorkerWarning, _level())


def _nobody(redis: "Redis") -> NoWorker | None:
    context = get_context()
    if context.settings.embedded_redis:  # where that runs, a supervisor sees to the workers
        down = f"Nothing runs on {context.settings.data_dir}: start it with `penstock up`."
        return None if context.online else NoWorker(down)
    try:
        return None if Presence(redis).alive() else NoWorker()
    except RedisError:
        return NoWorker("Redis cannot be reached, so that nobody can be told of work: see `penstock doctor`.")


def _level() -> int:
    """The `stacklevel` that names the line of the program that called us, for a warning of our caller."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # `skip_file_prefixes` needs Python 3.12
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_OURS):
        frame, level = frame.f_back, level + 1
    return level


def watch(
    look: Callable[[], Found],
    outstanding: Callable[[Found], int],
    concerns: Callable[[dict[str, str]], bool],
    *,
    undone: tuple[str, str],
    timeout_s: float | None = None,
    idle: Callable[[], object] = lambda: None,
    fleet: Fleet | None = None,
) -> Iterator[Found]:
    """What `look` gives, again and again, until nothing of it is `outstanding`.

    `concerns` says of an event (its fields) whether it is worth a look. `idle` is called about once a second, and the
    `fleet` looked at. Raises `TimeoutError`, in the words `N {undone} after …`, for one or several, after `timeout_s`
    seconds.
    """
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    fleet = fleet or Fleet()
    with Listener() as listener:
        looked = -float("inf")
        while True:
            found = look()
            yield found
            left = outstanding(found)
            if not left:
                return
            if time.monotonic() - looked >= LOOK_AGAIN_S:
                if looked > 0:
                    idle()
                looked = time.monotonic()
                fleet.look(listener.redis)
            left_s = min(LOOK_AGAIN_S, deadline - time.monotonic())
            if left_s <= 0:
                raise TimeoutError(
                    f"{left} {undone[left != 1]} after {timeout_s} s" + (f". {fleet.missed}" if fleet.missed else "")
                )
            listener.pause(concerns, left_s)


class Listener:
    """Waits for an event, or just waits while Redis is away."""

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

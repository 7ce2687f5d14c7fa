"""What streams of events are fed from: one reader of the database and of Redis for all of them.

It keeps the newest events and the newest progress. A stream takes what it has not sent yet; one that is further behind
than what is kept reads the database itself: a slow client costs others nothing, and never more memory.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event as Ending
from typing import TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request
from redis import RedisError

from pipeline.engine.outbox import Event
from pipeline.interfaces.http.dependencies import ByCaller
from pipeline.operations import events
from pipeline.operations.caller import Caller
from pipeline.operations.quotas import Quotas
from pipeline.operations.refusal import Refused
from pipeline.storage import api_keys, api_sessions
from pipeline.storage.context import Context

Result = TypeVar("Result")
LOOK_S = 0.5
"""How often the database is asked for what is new; Redis says at once what moves."""
KEPT = 2000
KEY_S = 10.0
"""How often a stream looks whether its key is still good."""
Progress = tuple[int, dict[str, str]]


class Feed:
    """One for each application."""

    def __init__(self, context: Context, ending: Ending, quotas: Quotas) -> None:
        self._context, self.ending, self._quotas = context, ending, quotas
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._progress: deque[Progress] = deque(maxlen=KEPT)
        self._last = 0
        self._moved = 0
        self._open: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._threads = CapacityLimiter(4)

    @contextmanager
    def stream(self, caller: str) -> Iterator[None]:
        """A stream of this caller is open. Raises `Refused` (429) if there are too many."""
        settings = self._quotas.settings
        if self._open.total() >= settings.streams or self._open[caller] >= settings.streams_per_key:
            raise Refused("too many streams of events are open: close one", code="too_many_requests")
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            self._open += Counter()  # without those that have none

    async def asked(self, what: Callable[..., Result], *arguments: object, **named: object) -> Result:
        """The answer of a function of `operations.events`, in a thread."""
        return await run_sync(partial(what, *arguments, context=self._context, **named), limiter=self._threads)

    def has_usable_key(self, caller: Caller) -> bool:
        """Whether the caller's key is still good, and the session through which it is used. Blocks."""
        if caller.session and not api_sessions.is_still_usable(self._context, caller.session):
            return False
        return api_keys.is_still_usable(self._context, caller.id)

    def start(self, last: int) -> None:
        """See to it that somebody reads, for as long as streams are open. `last`: the newest event just now."""
        if self._reading is None or self._reading.done():
            self._events.clear()
            self._last = last
            self._reading = asyncio.create_task(self._read())

    def since(self, seq: int) -> list[Event] | None:
        """The events after this number; None if they begin before those that are kept here."""
        if seq >= self._last:
            return []
        is_kept = self._events and self._events[0].seq <= seq + 1
        return [one for one in self._events if one.seq > seq] if is_kept else None

    @property
    def last(self) -> int:
        """The number of the newest event that was read."""
        return self._last

    @property
    def moved(self) -> int:
        """The number of the newest progress."""
        return self._moved

    def progress_since(self, number: int) -> list[Progress]:
        """Progress after this number, as far as it is kept."""
        return [one for one in self._progress if one[0] > number]

    async def wait(self, seconds: float) -> None:
        """Until there may be something new, or so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _read(self) -> None:
        position = ""
        while self._open and not self.ending.is_set():
            found = await self.asked(events.after_if_possible, self._last)
            if found:
                self._events.extend(found)
                self._last = found[-1].seq
            position, moved = await self._look(position, 0.001 if found else LOOK_S)
            if found or moved:
                self._tell()
        self._tell()

    def _tell(self) -> None:
        """Wake all streams."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _look(self, position: str, wait_s: float) -> tuple[str, bool]:
        """Read progress, waiting for it for a while; where it stands, and whether there was any."""
        if not self._context.online:
            await asyncio.sleep(wait_s)
            return "", False
        try:
            position = position or await self.asked(events.progress_from)
            found = await self.asked(events.progress, position, wait_s)
        except RedisError:
            await asyncio.sleep(wait_s)
            return "", False
        for _, fields in found:
            self._moved += 1
            self._progress.append((self._moved, fields))
        return (found[-1][0] if found else position), bool(found)


async def for_one(request: Request, caller: ByCaller) -> AsyncIterator[Feed]:
    """The application's feed, for one more stream of this caller."""
    state = request.app.state
    if not hasattr(state, "feed"):
        state.feed = Feed(state.context, state.ending, state.quotas)
    with state.feed.stream(caller.id):
        yield state.feed


class Stay:
    """How long one stream may go on: so many seconds, while its key is good, until the server ends."""

    def __init__(self, feed: Feed, caller: Caller, longest_s: float) -> None:
        self._feed, self._caller = feed, caller
        self._looked_at = time.monotonic()
        self._ends_at = self._looked_at + longest_s

    async def lasts(self) -> bool:
        """Whether it goes on."""
        now = time.monotonic()
        if self._caller.has_key and now - self._looked_at > KEY_S:
            self._looked_at = now
            if not await run_sync(self._feed.has_usable_key, self._caller):
                return False
        return now < self._ends_at and not self._feed.ending.is_set()

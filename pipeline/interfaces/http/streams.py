"""Feeds all streams of events of a process from one reader of the database and of Redis.

The feed keeps the newest events and the newest progress. Each stream sends the events that it has not sent yet; one
that lags behind the kept events reads the database itself. So a slow client costs other streams nothing, and no memory.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event as Ending
from typing import Any, ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request
from redis import RedisError

from pipeline.engine.outbox import Event
from pipeline.interfaces.http.dependencies import ByCaller
from pipeline.operations import events
from pipeline.operations.caller import Caller
from pipeline.operations.operation import Operation
from pipeline.operations.quotas import Quotas
from pipeline.operations.refusal import Refused
from pipeline.storage import api_keys, api_sessions
from pipeline.storage.context import Context

P = ParamSpec("P")
Result = TypeVar("Result")
POLL_S = 0.5
"""Seconds between queries for new events; Redis pushes progress at once."""
KEPT = 2000
KEY_S = 10.0
"""Seconds between checks that a stream's key is still valid."""
Progress = tuple[int, dict[str, str]]


class Feed:
    """The feed of one application."""

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
        """Count an open stream of this caller. Raises `Refused` (429) if there are too many."""
        settings = self._quotas.settings
        each = min(settings.streams_per_key, settings.streams // 2)
        if self._open.total() >= settings.streams or self._open[caller] >= each:
            raise Refused("too many streams of events are open: close one", code="too_many_requests")
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            self._open += Counter()  # drops callers with none

    async def run(self, operation: Operation[P, Result], *arguments: P.args, **named: P.kwargs) -> Result:
        """Call an operation in a thread. The server is the caller: it reads once for all streams."""
        return await run_sync(partial(operation.by, Caller(self._context), *arguments, **named), limiter=self._threads)

    def has_usable_key(self, caller: Caller) -> bool:
        """Whether the caller's key is still valid, and their session if they use one. Blocks."""
        if caller.session and not api_sessions.is_still_usable(self._context, caller.session):
            return False
        return api_keys.is_still_usable(self._context, caller.id)

    def start(self, last: int) -> None:
        """Start the reader unless it runs; it ends with the last stream. `last`: read the events after this number,
        ignored if it runs."""
        if self._reading is None or self._reading.done():
            self._events.clear()
            self._last = last
            self._reading = asyncio.create_task(self._read())

    def since(self, seq: int) -> list[Event] | None:
        """The kept events after this number, oldest first; None if the feed no longer keeps the first of them, so that
        the caller must read the database."""
        if seq >= self._last:
            return []
        is_kept = self._events and self._events[0].seq <= seq + 1
        return [event for event in self._events if event.seq > seq] if is_kept else None

    @property
    def last(self) -> int:
        """The number of the newest event read."""
        return self._last

    @property
    def moved(self) -> int:
        """The number of the newest progress message."""
        return self._moved

    def progress_since(self, number: int) -> list[Progress]:
        """The kept progress messages after this number, oldest first, as (number, fields). Dropped ones are lost."""
        return [message for message in self._progress if message[0] > number]

    async def wait(self, seconds: float) -> None:
        """Wait until the reader has new events or progress, at most this many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _read(self) -> None:
        position = ""
        while self._open and not self.ending.is_set():
            latest = await self.run(events.after_if_possible, self._last)
            if latest:
                self._events.extend(latest)
                self._last = latest[-1].seq
            position, moved = await self._read_progress(position, 0.001 if latest else POLL_S)
            if latest or moved:
                self._wake_streams()
        self._wake_streams()

    def _wake_streams(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _read_progress(self, position: str, wait_s: float) -> tuple[str, bool]:
        """Wait up to `wait_s` for progress; return (the position to go on from, whether there was progress)."""
        if not self._context.online:
            await asyncio.sleep(wait_s)
            return "", False
        try:
            position = position or await self.run(events.progress_from)
            messages = await self.run(events.progress, position, wait_s)
        except RedisError:
            await asyncio.sleep(wait_s)
            return "", False
        for _, fields in messages:
            self._moved += 1
            self._progress.append((self._moved, fields))
        return (messages[-1][0] if messages else position), bool(messages)


def feed_of(state: Any) -> Feed:
    """The one feed of the application with this state."""
    if not hasattr(state, "feed"):
        state.feed = Feed(state.context, state.ending, state.quotas)
    feed: Feed = state.feed
    return feed


async def for_one(request: Request, caller: ByCaller) -> AsyncIterator[Feed]:
    """Yield the application's one feed, and count a stream of this caller until the request ends.

    Raises `Refused` (429) if too many streams are open, of all callers or of this one.
    """
    feed = feed_of(request.app.state)
    with feed.stream(caller.id):
        yield feed


class Stay:
    """Limits one stream: `longest_s` seconds, while its key is valid, until the server shuts down."""

    def __init__(self, feed: Feed, caller: Caller, longest_s: float) -> None:
        self._feed, self._caller = feed, caller
        self._looked_at = time.monotonic()
        self._ends_at = self._looked_at + longest_s

    async def lasts(self) -> bool:
        """Whether the stream may go on: its time is not over, its key is valid, and the server is not shutting down.
        Checks the key at most every `KEY_S` seconds."""
        now = time.monotonic()
        if self._caller.has_key and now - self._looked_at > KEY_S:
            self._looked_at = now
            if not await run_sync(self._feed.has_usable_key, self._caller):
                return False
        return now < self._ends_at and not self._feed.ending.is_set()

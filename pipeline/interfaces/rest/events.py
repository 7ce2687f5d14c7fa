"""`/api/v1/events`: changes as server-sent events, replayed from any number."""

import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import StringConstraints

from pipeline.engine.outbox import Event
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, reader
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Id, Limit, Line, RowId, Word
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.http.streams import Feed, Stay, for_one
from pipeline.operations import events
from pipeline.operations.events import Filter

router = APIRouter(prefix="/events", tags=["events"], dependencies=reader)
HEARTBEAT_S = 10.0
LONGEST_S = 1800.0
"""The client reconnects after this time."""
RETRY_MS = 3000
MAX_NUMBER = 2**53 - 1
Number = Annotated[
    int | None, Query(ge=0, le=MAX_NUMBER, description="Only events after this number, including old ones.")
]
Pattern = Annotated[str, Query(max_length=80, pattern=r"^[a-z_]+(\.([a-z_]+|\*))?$")]


def _filter(
    flow: Annotated[Word | None, Query(description="Only events of this flow.")] = None,
    type: Annotated[  # noqa: A002  # its name in requests
        list[Pattern], Query(max_length=50, description="Types such as `document.completed`, `document.*`, `progress`.")
    ] = [],  # noqa: B006  # FastAPI copies it
    scope: Annotated[Id | None, Query(description="Only events of this document, run, batch or item.")] = None,
) -> Filter:
    return Filter(flow or "", tuple(type), scope or "")


@router.get("", response_class=EventSourceResponse, responses=documented(429))
async def follow(
    feed: Annotated[Feed, Depends(for_one)],
    caller: ByCaller,
    wanted: Annotated[Filter, Depends(_filter)],
    after: Number = None,
    last_event_id: Annotated[
        Annotated[Line, StringConstraints(max_length=20)] | None,
        Header(description="The last event that the client received; overrides `after`."),
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Follow changes. Each event's `id` is its number, from which a reconnecting client continues.

    Without a number, the stream starts now. `reset` says that some events after the client's number are deleted:
    fetch the current state. `progress` has no id, and is not replayed.
    """
    known = _number(last_event_id, after)
    range_ = await feed.run(events.kept)
    feed.start(range_.last)
    last = range_.last if known is None else known
    moved, stay = feed.moved, Stay(feed, caller, LONGEST_S)
    yield ServerSentEvent(comment="events", retry=RETRY_MS)
    if last < range_.first - 1 or last > range_.last:
        last = range_.first - 1 if last < range_.first - 1 else range_.last
        data = {"reason": "some events are deleted", "first": range_.first, "last": range_.last}
        yield ServerSentEvent(event="reset", id=str(last), data=data)
    said_at = time.monotonic()
    while await stay.lasts():
        new = feed.since(last)
        if new is None:
            new = await feed.run(events.after_if_possible, last)
        for event in new:
            last = event.seq
            if wanted.matches(event):
                yield _server_event(event)
                said_at = time.monotonic()
        for number, fields in feed.progress_since(moved):
            moved = number
            if wanted.matches_progress(fields):
                yield ServerSentEvent(event="progress", data=fields)
                said_at = time.monotonic()
        if time.monotonic() - said_at > HEARTBEAT_S:
            yield ServerSentEvent(comment="still here")
            said_at = time.monotonic()
        if not new:
            await feed.wait(1.0)


@router.get("/log")
def list_events(
    caller: ByCaller, wanted: Annotated[Filter, Depends(_filter)], limit: Limit = 50, cursor: Cursor = None
) -> Page[Event]:
    """List the stored events, newest first. To follow events, use the stream."""
    (before,) = pages.decode(cursor, int) or (None,)
    rows = events.newest.by(caller, wanted, before=before, limit=limit + 1)
    return pages.views(rows, limit, lambda event: (event.seq,))


@router.get("/log/{seq}", responses=documented(404))
def show_event(caller: ByCaller, seq: RowId) -> Event:
    """Show a stored event."""
    return events.one.by(caller, seq)


def _number(last_event_id: str | None, after: int | None) -> int | None:
    header = last_event_id if last_event_id and last_event_id.isascii() and last_event_id.isdigit() else None
    return min(int(header), MAX_NUMBER) if header else after


def _server_event(event: Event) -> ServerSentEvent:
    data = asdict(event)
    data |= {"id": data.pop("scope_id"), "created_at": event.created_at.isoformat()}
    return ServerSentEvent(event=event.type, id=str(event.seq), data=data)

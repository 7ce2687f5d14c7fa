"""The log of events: what changed, newest first, while it changes; and each event in full."""

import json
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import Field, TypeAdapter

from pipeline.engine.outbox import Event
from pipeline.flows import FLOWS
from pipeline.interfaces.console import live
from pipeline.interfaces.console.fields import BLANK, CursorText
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, reader
from pipeline.interfaces.http.fields import Id, RowId, Word
from pipeline.interfaces.http.places import place
from pipeline.operations import events as record
from pipeline.operations.caller import Caller
from pipeline.operations.events import Filter
from pipeline.storage.context import Context

router = APIRouter(prefix="/console/events", include_in_schema=False, dependencies=reader)
ROWS = 50
_SHOWN = TypeAdapter(Event)
Type = Annotated[str, Field(max_length=80, pattern=r"^[a-z_]+\.([a-z_]+|\*)$")]
_CSS = {
    **dict.fromkeys(("completed", "succeeded"), "done"),
    **dict.fromkeys(("failed", "partial_failed", "failed_permanent"), "failed"),
    **dict.fromkeys(("pending", "breaker"), "waiting"),
    **dict.fromkeys(("paused", "stopped", "idle"), "paused"),
    **dict.fromkeys(("deleted", "cancelled"), ""),
}


class EventsAsked(live.Asked):
    """Which events."""

    flow: Annotated[Word | None, BLANK] = None
    type: Annotated[Type | None, BLANK] = None
    scope: Annotated[Id | None, BLANK] = None

    def filter(self) -> Filter:
        """It as a filter."""
        return Filter(self.flow or "", (self.type,) if self.type else (), self.scope or "")

    def query(self, **change: str) -> dict[str, str]:
        """The query that asks for it, or for something else."""
        return {**self.model_dump(exclude_none=True), **change}


class EventsPage(EventsAsked):
    """Which events, from which on."""

    cursor: Annotated[CursorText | None, BLANK] = None


def _name(event: Event) -> str:
    """What people call what the event is about."""
    return str(event.data.get("filename") or event.data.get("name") or "")


def _told(event: Event) -> str:
    """All of it, as the stream and webhooks tell it."""
    return json.dumps(_SHOWN.dump_python(event, mode="json", by_alias=True), indent=2, ensure_ascii=False)


def _list(caller: Caller, asked: EventsAsked, cursor: str | None = None) -> str:
    (before,) = pages.decode(cursor, int) or (None,)
    found = record.newest.by(caller, asked.filter(), before=before, limit=ROWS + 1)
    page = pages.views(found, ROWS, lambda event: (event.seq,))
    return piece(
        "events/_list.html", found=page, asked=asked, cursor=cursor, css=_CSS, place=place, name=_name, told=_told
    )


@live.view("events", matches=lambda asked: asked.filter())
def fragments(context: Context, asked: EventsAsked) -> dict[str, str]:
    """The newest events."""
    return {"event-list": _list(Caller(context), asked)}


@router.get("")
def list_events(request: Request, caller: ByCaller, page: Annotated[EventsPage, Query()]) -> HTMLResponse:
    """The events that are kept, newest first."""
    asked = EventsAsked(**page.model_dump(exclude={"cursor"}))
    types = record.types()
    kinds = sorted({f"{one.partition('.')[0]}.*" for one in types})
    flows = [name for name in FLOWS if name != "webhooks"]
    return screen(
        request,
        "events/log.html",
        asked=asked,
        cursor=page.cursor,
        flows=flows,
        kinds=kinds,
        types=types,
        events=_list(caller, asked, page.cursor),
    )


@router.get("/log/{seq}")
def show(request: Request, caller: ByCaller, seq: RowId) -> HTMLResponse:
    """One event, as it was told."""
    event = record.one.by(caller, seq)
    return screen(
        request,
        "events/event.html",
        event=event,
        told=_told(event),
        css=_CSS,
        name=_name(event),
        place=place(event.kind, event.scope_id),
    )

"""The live log of events, newest first, and each event in full."""

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


class EventsQuery(live.ViewQuery):
    """The filter of the events."""

    flow: Annotated[Word | None, BLANK] = None
    type: Annotated[Type | None, BLANK] = None
    scope: Annotated[Id | None, BLANK] = None

    def filter(self) -> Filter:
        """Return the filter that operations accept."""
        return Filter(self.flow or "", (self.type,) if self.type else (), self.scope or "")

    def query(self, **change: str) -> dict[str, str]:
        """Return the query of this filter with the given changes."""
        return {**self.model_dump(exclude_none=True), **change}


class EventsPage(EventsQuery):
    """The filter and the start of the page."""

    cursor: Annotated[CursorText | None, BLANK] = None


def _name(event: Event) -> str:
    """Return the name of the event's subject; empty without one."""
    return str(event.data.get("filename") or event.data.get("name") or "")


def _as_json(event: Event) -> str:
    """Return the event as indented JSON text, with the fields that the stream and webhooks send."""
    return json.dumps(_SHOWN.dump_python(event, mode="json", by_alias=True), indent=2, ensure_ascii=False)


def _list(caller: Caller, filters: EventsQuery, cursor: str | None = None) -> str:
    (before,) = pages.decode(cursor, int) or (None,)
    rows = record.newest.by(caller, filters.filter(), before=before, limit=ROWS + 1)
    page = pages.views(rows, ROWS, lambda event: (event.seq,))
    return piece(
        "events/_list.html",
        page=page,
        filters=filters,
        cursor=cursor,
        css=_CSS,
        place=place,
        name=_name,
        as_json=_as_json,
    )


@live.view("events", matches=lambda query: query.filter())
def fragments(context: Context, query: EventsQuery) -> dict[str, str]:
    """Return HTML by element id: the newest events."""
    return {"event-list": _list(Caller(context), query)}


@router.get("")
def list_events(request: Request, caller: ByCaller, page: Annotated[EventsPage, Query()]) -> HTMLResponse:
    """Show the stored events, newest first."""
    filters = EventsQuery(**page.model_dump(exclude={"cursor"}))
    types = record.types()
    kinds = sorted({f"{event_type.partition('.')[0]}.*" for event_type in types})
    flows = [name for name in FLOWS if name != "webhooks"]
    return screen(
        request,
        "events/log.html",
        filters=filters,
        cursor=page.cursor,
        flows=flows,
        kinds=kinds,
        types=types,
        events=_list(caller, filters, page.cursor),
    )


@router.get("/log/{seq}")
def show(request: Request, caller: ByCaller, seq: RowId) -> HTMLResponse:
    """Show an event as it was sent."""
    event = record.one.by(caller, seq)
    return screen(
        request,
        "events/event.html",
        event=event,
        as_json=_as_json(event),
        css=_CSS,
        name=_name(event),
        place=place(event.kind, event.scope_id),
    )

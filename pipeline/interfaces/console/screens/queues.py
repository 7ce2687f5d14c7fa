"""Queues and breakers: waiting work with reasons, and an operator's actions."""

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from starlette.responses import Response

from pipeline.engine.breaker import BreakerState
from pipeline.engine.live_settings import Value
from pipeline.engine.nouns import duration
from pipeline.interfaces.console import live
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.fields import BLANK
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.console.screens.overview import units
from pipeline.interfaces.http.dependencies import ByCaller, InContext, admin, reader
from pipeline.interfaces.http.fields import Line, Word
from pipeline.operations import backlog, live_settings
from pipeline.operations import queues as control
from pipeline.operations.caller import Caller
from pipeline.operations.events import Filter
from pipeline.providers import gates, queue_views
from pipeline.providers.breaker_record import BreakerChange
from pipeline.providers.queue_views import Holdup, QueueView, holdup
from pipeline.storage.context import Context

router = APIRouter(prefix="/console/queues", include_in_schema=False, dependencies=reader)
SPANS = {"10": "10 minutes", "60": "an hour", "480": "8 hours", "1440": "a day", "": "until it is resumed"}
"""The lengths of a pause, in minutes."""
BREAKER_SPANS = {**{minutes: words for minutes, words in SPANS.items() if minutes}, "": "one cool-down"}
"""The times for which a breaker is opened, in minutes."""
MAX_MINUTES = 366 * 1440
Minutes = Annotated[Annotated[float, Field(gt=0, le=MAX_MINUTES)] | None, BLANK]
_NONE = Filter(types=("none",))
"""Render queues every few seconds: time changes them too, and events come too often."""


class QueuesQuery(live.ViewQuery):
    """No fields: all queues."""


class QueueQuery(live.ViewQuery):
    """One queue with a gate."""

    queue: Word


@dataclass(frozen=True)
class Row:
    """A queue as the screen shows it. `key` is its part of element ids."""

    view: QueueView
    key: str
    held: Holdup | None
    """The reason why no call passes now."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Waiting rows by their noun."""
    breaker: str = ""
    shared: tuple[str, ...] = ()
    """Other queues that share its provider's limits."""
    is_first: bool = True
    """First of the queues that share limits: the list shows shared limits once."""


@dataclass(frozen=True)
class BreakerRow:
    """A breaker as the screen shows it."""

    state: BreakerState
    key: str
    queues: list[str]
    """The queues that it closes."""
    history: list[BreakerChange]
    probe_at: datetime | None


def key_of(name: str) -> str:
    """Return the form of a name that element ids and CSS selectors allow: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


def _row(context: Context, view: QueueView, waiting: dict[str, Counter[str]], now: datetime) -> Row:
    known = context.gates.queues
    gated = known.get(view.name)
    alike = [name for name, other in known.items() if other.provider == view.provider]
    return Row(
        view,
        key_of(view.name),
        holdup(view, now),
        waiting.get(view.name, Counter()),
        gated.breaker if gated else "",
        tuple(name for name in alike if name != view.name),
        not alike or alike[0] == view.name,
    )


def _rows(context: Context) -> list[Row]:
    waiting, now = backlog.by_queue(context), context.db.now()
    return [_row(context, view, waiting, now) for view in queue_views.queues(context)]


def _breaker(context: Context, state: BreakerState) -> BreakerRow:
    probe_at = context.db.now() + timedelta(seconds=state.left_s) if state.state == "open" else None
    return BreakerRow(
        state,
        key_of(state.name),
        context.gates.closed_by(state.name),
        queue_views.breaker_history(context, state.name),
        probe_at,
    )


def _cells(row: Row, *, whole: bool) -> dict[str, str]:
    """Return HTML by element id: the changing parts of a queue.

    `whole`: include limits that it shares with other queues.
    """
    return {
        f"queue-{row.key}-{part}": piece(f"queues/_{part}.html", row=row, units=units, whole=whole)
        for part in ("state", "waiting", "flight", "windows")
    }


def _of_breaker(row: BreakerRow) -> dict[str, str]:
    return {f"breaker-{row.key}": piece("queues/_breaker.html", row=row)}


@live.view("queues", matches=lambda _: _NONE, every_s=2)
def all_queues(context: Context, query: QueuesQuery) -> dict[str, str]:  # noqa: ARG001
    """Return HTML by element id: the changing parts of all queues and breakers."""
    return _pieces(_rows(context), [_breaker(context, state) for state in queue_views.breakers(context)])


def _pieces(rows: list[Row], breakers: list[BreakerRow]) -> dict[str, str]:
    shown: dict[str, str] = {"queues-facts": piece("queues/_facts.html", rows=rows)}
    for row in rows:
        shown |= _cells(row, whole=row.is_first)
    for breaker in breakers:
        shown |= _of_breaker(breaker)
    return shown


@live.view("queue", matches=lambda _: _NONE, every_s=2)
def one_queue(context: Context, query: QueueQuery) -> dict[str, str]:
    """Return HTML by element id: the changing parts of a queue and its breaker, with the breaker's history."""
    row = _row(context, queue_views.queue(context, query.queue), backlog.by_queue(context), context.db.now())
    breaker = _breaker(context, queue_views.breaker(context, row.breaker))
    past = piece("queues/_history.html", history=breaker.history)
    return {**_cells(row, whole=True), **_of_breaker(breaker), "breaker-history": past}


@router.get("")
def show(request: Request, context: InContext) -> HTMLResponse:
    """Show all queues and breakers."""
    rows, breakers = _rows(context), [_breaker(context, state) for state in queue_views.breakers(context)]
    return screen(
        request,
        "queues/index.html",
        rows=rows,
        breakers=breakers,
        shown=_pieces(rows, breakers),
        spans=SPANS,
        breaker_spans=BREAKER_SPANS,
    )


@router.get("/{queue}")
def show_one(request: Request, context: InContext, caller: ByCaller, queue: Word) -> HTMLResponse:
    """Show a queue: its state, its limits, its breaker."""
    shown = one_queue(context, QueueQuery(queue=queue))
    row = _row(context, queue_views.queue(context, queue), {}, context.db.now())
    return screen(
        request,
        "queues/queue.html",
        row=row,
        breaker=queue_views.breaker(context, row.breaker),
        breaker_key=key_of(row.breaker),
        shown=shown,
        spans=SPANS,
        breaker_spans=BREAKER_SPANS,
        settings=_settings(caller, row) if caller.is_admin else [],
    )


def _settings(caller: Caller, row: Row) -> list[tuple[str, Value]]:
    """Return (label, setting) of each live setting of the queue and its provider."""
    name, provider = row.view.name, row.view.provider
    named = {
        f"queue.{name}.limits": "This queue's limits",
        f"queue.{name}.concurrency": "This queue's concurrent calls",
        f"provider.{provider}.limits": f"Limits of all queues of {provider}",
        f"provider.{provider}.concurrency": f"Concurrent calls of all queues of {provider}",
        f"provider.{provider}.daily_spend_cap": f"Daily spend cap of {provider}",
    }
    if followed := caller.context.gates.queues[name].limits_setting:
        named[followed] = "Calls per minute, while this queue has no limits of its own"
    return [(words, live_settings.setting.by(caller, key)) for key, words in named.items()]


class Pause(BaseModel):
    """The length of a pause, and its reason."""

    minutes: Minutes = None
    reason: Line = ""


class Opening(Pause):
    """The time for which a breaker is opened, and the reason."""


class Change(BaseModel):
    """A live setting's new value."""

    value: Line = ""
    reason: Line = ""


def _signed(reason: str, caller: Caller) -> str:
    """Return the reason with the caller's name."""
    return f"{reason} (by {caller.name})".strip() if reason else f"by {caller.name}"


@router.post("/{queue}/pause", dependencies=admin)
def pause(request: Request, caller: ByCaller, queue: Word, how: Annotated[Pause, Form()]) -> Response:
    """Block calls; calls in flight finish."""
    seconds = how.minutes * 60 if how.minutes else None
    control.pause.by(caller, queue, seconds, _signed(how.reason, caller))
    length = f"for {duration(seconds)}" if seconds else "until it is resumed"
    return done(request, f"{queue} is paused {length}. Calls in flight finish; nothing is lost.")


@router.post("/{queue}/drain", dependencies=admin)
def drain(request: Request, caller: ByCaller, queue: Word) -> Response:
    """Pause until an operator resumes the queue; the screen shows when no call is in flight."""
    control.pause.by(caller, queue, None, _signed("drained", caller))
    in_flight = control.queue.by(caller, queue).in_flight
    return done(
        request,
        f"{queue} is draining: {in_flight} calls in flight finish." if in_flight else f"{queue} is drained and paused.",
    )


@router.post("/{queue}/resume", dependencies=admin)
def resume(request: Request, caller: ByCaller, queue: Word) -> Response:
    """End an operator's pause."""
    control.resume.by(caller, queue)
    still = gates.closed_because(caller.context, queue)
    return done(request, f"{queue} is no longer paused by an operator" + (f", but {still}." if still else "."))


@router.post("/settings/{key}", dependencies=admin)
def change(request: Request, caller: ByCaller, key: Word, new: Annotated[Change, Form()]) -> Response:
    """Change a live setting of the queue or its provider, for every worker."""
    value: Any = live_settings.change_setting.by(caller, key, new.value, reason=new.reason)
    return done(request, f"{key} is {value if value != '' else 'no limit'}, on every worker within two seconds.")


@router.post("/settings/{key}/reset", dependencies=admin)
def reset(request: Request, caller: ByCaller, key: Word) -> Response:
    """Return a live setting to its configured value."""
    value: Any = live_settings.reset_setting.by(caller, key)
    return done(request, f"{key} is back to its configured value: {value if value != '' else 'no limit'}.")


@router.post("/breakers/{breaker}/open", dependencies=admin)
def open_breaker(request: Request, caller: ByCaller, breaker: Word, how: Annotated[Opening, Form()]) -> Response:
    """Open a breaker: it blocks calls of all queues of a provider's capability, until a probe succeeds."""
    left_s = control.open_breaker.by(caller, breaker, (how.minutes or 0) * 60, _signed(how.reason, caller))
    return done(request, f"{breaker} is open: calls are blocked; a probe in {duration(left_s)}.")


@router.post("/breakers/{breaker}/close", dependencies=admin)
def close_breaker(request: Request, caller: ByCaller, breaker: Word) -> Response:
    """Close a breaker: calls pass again now."""
    control.close_breaker.by(caller, breaker)
    return done(request, f"{breaker} is closed: calls pass again.")

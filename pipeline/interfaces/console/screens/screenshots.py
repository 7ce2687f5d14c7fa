"""Screenshots: the timeline by day and thread; search hits with their words on the picture; frames and nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from pydantic import Field

from pipeline.flows.screenshots.frames import renditions
from pipeline.flows.screenshots.frames.files import Kind
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.views import Hour, NodeFrames, TextLine
from pipeline.interfaces.console import live
from pipeline.interfaces.console.addresses import url
from pipeline.interfaces.console.fields import BLANK
from pipeline.interfaces.console.page import HEADERS, piece, screen
from pipeline.interfaces.console.words import combined
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, reader
from pipeline.interfaces.http.fields import Line, RowId
from pipeline.interfaces.http.guard import check_same_site
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.pages import Cursor
from pipeline.interfaces.http.screenshots import rendition
from pipeline.operations import screenshots
from pipeline.operations.caller import Caller
from pipeline.operations.events import Filter
from pipeline.storage.context import Context
from pipeline.storage.fusion import spots

ROOT = "/console/screenshots"
router = APIRouter(prefix=ROOT, include_in_schema=False, dependencies=reader)
NODES, FRAMES, HITS, NEAR = 40, 60, 25, 30
"""Rows on a page; the last is the number of a thread's latest nodes beside a node."""
_FRAMES_EACH = 4
STATES = {
    "succeeded": ("done", "done"),
    "running": ("working", "running"),
    "pending": ("waiting", "waiting"),
    "failed": ("waiting", "to be retried"),
    "failed_permanent": ("failed", "given up"),
}
"""The colour and the words of a state."""
MADE_BY = {
    "model": "a text model",
    "direct": "the vision model only",
    "rules": "text recognition and rules",
    "": "",
}
_SINCE = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
SinceWord = Annotated[Literal["", "1h", "24h", "7d", "30d"], Query()]
Day = Annotated[Annotated[date, Field(ge=date(1970, 1, 2), le=date(2999, 12, 30))] | None, BLANK]


class ScreenshotsQuery(live.ViewQuery):
    """No fields: there is one status."""


@live.view("screenshots", matches=lambda _: Filter(flow="screenshots"), every_s=5)
def fragments(context: Context, query: ScreenshotsQuery) -> dict[str, str]:  # noqa: ARG001
    """Return HTML by element id: the state of the flow in a line."""
    return {"shots-status": _status_line(Caller(context))}


def _status_line(caller: Caller) -> Markup:
    newest = next(iter(screenshots.screenshots.by(caller, limit=1)), None)
    status = screenshots.status.by(caller, makers=False)
    return piece("screenshots/_status.html", status=status, newest=newest)


def page(request: Request, caller: Caller, template: str, **values: Any) -> HTMLResponse:
    """Render a template of `screenshots/` as a whole page, with the values that all these pages show."""
    letters = screenshots.dead_letter_counts.by(caller)
    return screen(
        request,
        f"screenshots/{template}",
        zone=screenshots.time_zone.by(caller),
        states=STATES,
        made_by=MADE_BY,
        letters=sum(letters.values()),
        letters_by=letters,
        **values,
    )


@dataclass(frozen=True)
class DayOfHours:
    """A day, the latest hour first."""

    day: date
    hours: list[Hour]


def by_day(hours: Iterable[Hour]) -> list[DayOfHours]:
    """Group hours by day, the latest day and hour first."""
    days: dict[date, DayOfHours] = {}
    for hour in sorted(hours, key=lambda hour: (hour.begins_at, hour.nodes[-1].event_time), reverse=True):
        days.setdefault(hour.begins_at.date(), DayOfHours(hour.begins_at.date(), [])).hours.append(hour)
    return list(days.values())


@router.get("")
def timeline(
    request: Request,
    caller: ByCaller,
    q: Line = "",
    since: SinceWord = "",
    app: Line = "",
    day: Day = None,
    thread: Line = "",
    derived: bool = False,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show the timeline; for a search, its hits."""
    filters = {"q": q.strip(), "since": since, "app": app, "day": day or "", "thread": thread, "derived": derived or ""}
    apps = screenshots.apps.by(caller)
    if q.strip():
        return _hits(request, caller, filters, apps)
    until = None
    if day:
        begins = datetime.combine(day, time(), screenshots.time_zone.by(caller))
        until = (begins + timedelta(days=1)).astimezone(UTC)
    before, derived = pages.decode(cursor, At, int), derived or bool(thread)
    some, more = screenshots.timeline_page.by(caller, NODES, until=until, thread=thread, derived=derived, before=before)
    shown = [node.id for hour in some for node in hour.nodes]
    return page(
        request,
        caller,
        "timeline.html",
        filters=filters,
        apps=apps,
        days=by_day(some),
        frames=screenshots.frames_of.by(caller, shown, _FRAMES_EACH),
        status_line=_status_line(caller),
        named=some[0].thread_title if thread and some else "",
        next_url=following(ROOT, filters, more and pages.encode(*more)),
        first_url=following(ROOT, filters, "") if cursor else "",
        # Show frames before their first nodes.
        waiting=[] if some or day or thread or cursor else screenshots.screenshots.by(caller, limit=12),
    )


def _hits(request: Request, caller: Caller, filters: dict[str, Any], apps: list[str]) -> HTMLResponse:
    check_same_site(request)  # with an embeddings provider, a search costs a small call
    since = caller.context.db.now() - _SINCE[filters["since"]] if filters["since"] else None
    result = screenshots.search.by(caller, filters["q"], since, filters["app"], HITS)
    frames = screenshots.frames_of.by(caller, [hit.node.id for hit in result.hits], 1)
    pictures = screenshots.screenshots_by_id.by(caller, [hit.shot_id for hit in result.hits if hit.shot_id])
    return page(
        request,
        caller,
        "found.html",
        filters=filters,
        apps=apps,
        result=result,
        frames=frames,
        pictures=pictures,
        places=screenshots.known_places.by(caller, pictures, filters["q"]),
        marked=marked,
    )


def marked(text: str, words: str) -> Markup:
    """Return a text with the words of a query marked."""
    parts, at = [], 0
    for begin, end in spots(text, words):
        parts += [Markup("{}<mark>{}</mark>").format(text[at:begin], text[begin:end])]
        at = end
    return Markup("{}{}").format(Markup("").join(parts), text[at:])


def following(path: str, filters: Mapping[str, Any], cursor: str | None) -> str:
    """Return the address of a list's page at this cursor: the first page if it is empty, an empty text for None."""
    return "" if cursor is None else address(path, {**filters, "cursor": cursor})


def address(path: str, filters: Mapping[str, Any]) -> str:
    """Return the address of a path with this query, without empty values, below the prefix."""
    query = urlencode({name: str(value) for name, value in combined({}, filters).items()})
    return url(f"{path}?{query}" if query else path)


@router.get("/frames")
def list_frames(
    request: Request,
    caller: ByCaller,
    source: Line = "",
    app: Line = "",
    status: WorkStatus | Literal[""] = "",
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show the frames that match the filters, a page at a time, the latest first."""
    filters = {"source": source, "app": app, "status": status}
    rows = screenshots.screenshots.by(
        caller,
        source=source,
        app=app,
        status=status or None,
        limit=FRAMES + 1,
        before=pages.decode(cursor, At, int),
    )
    more = pages.encode(rows[FRAMES - 1].ts, rows[FRAMES - 1].id) if len(rows) > FRAMES else None
    return page(
        request,
        caller,
        "frames.html",
        filters=filters,
        shots_list=rows[:FRAMES],
        apps=screenshots.apps.by(caller),
        sources=screenshots.sources.by(caller),
        next_url=following(f"{ROOT}/frames", filters, more),
        first_url=following(f"{ROOT}/frames", filters, "") if cursor else "",
    )


@router.get("/frames/{shot_id}")
async def show_frame(
    request: Request, caller: ByCaller, shot_id: RowId, q: Line = "", read: bool = False
) -> HTMLResponse:
    """Show a frame with its text; `read`: recognise the places of the text now, if unknown."""
    return await run_sync(_frame, request, caller, shot_id, q, await _text(request, caller, shot_id, read=read))


@router.get("/frames/{shot_id}/words")
async def show_words(request: Request, caller: ByCaller, shot_id: RowId, q: Line = "") -> HTMLResponse:
    """Return HTML of a frame's picture and text, with the places of the words `q`, to replace that part of the page.

    Recognises the text first if its places are unknown, which takes seconds.
    """
    text = await _text(request, caller, shot_id, read=True)
    shot = await run_sync(screenshots.screenshot.by, caller, shot_id)
    words = q.strip()
    return HTMLResponse(
        piece("screenshots/_seen.html", shot=shot, q=words, seen=_seen(text, words), unread=""),
        headers=HEADERS,
    )


async def _text(request: Request, caller: Caller, shot_id: int, *, read: bool) -> bytes | None:
    """Return the lines of a frame's text with their places, as the stored JSON. `read`: recognise them now if unknown.

    None: unknown, or the frame has no picture.
    """
    shot = await run_sync(screenshots.screenshot.by, caller, shot_id)
    if shot.path is None:
        return None
    if read:
        return (await rendition(request, shot_id, Kind.TEXT))[1]
    return (await run_sync(screenshots.find_rendition.by, caller, shot_id, Kind.TEXT)).content


@dataclass(frozen=True)
class Seen:
    """The lines of a frame, and the number of query words in them."""

    lines: list[TextLine]
    words: int


def _seen(text: bytes | None, q: str) -> Seen | None:
    if text is None:
        return None
    lines = renditions.lines_in(text, q)
    return Seen(lines, sum(len(line.words) for line in lines))


def _frame(request: Request, caller: Caller, shot_id: int, q: str, text: bytes | None) -> HTMLResponse:
    shot = screenshots.screenshot.by(caller, shot_id)
    before, after = screenshots.neighbours.by(caller, shot)
    return page(
        request,
        caller,
        "frame.html",
        shot=shot,
        q=q.strip(),
        seen=_seen(text, q),
        before=before,
        after=after,
        nodes=screenshots.nodes_of.by(caller, shot_id),
        alike=screenshots.rejections.by(caller, nearest=shot_id, limit=20),
        unread=address(f"{ROOT}/frames/{shot_id}", {"q": q.strip(), "read": 1}),
        marked=marked,
        here_url=address(f"{ROOT}/frames/{shot_id}", {"q": q.strip()}),
    )


@router.get("/nodes/{node_id}")
def show_node(request: Request, caller: ByCaller, node_id: RowId) -> HTMLResponse:
    """Show a node with its frames and calls."""
    detail = screenshots.show.by(caller, node_id)
    node = detail.node
    ends = {end for edge in detail.edges for end in (edge.from_id, edge.to_id)} - {node.id}
    hours = screenshots.timeline.by(caller, thread=node.thread_id, derived=True, limit=NEAR) if node.thread_id else []
    others = [other for hour in hours for other in hour.nodes if other.id != node.id][::-1]
    frames: dict[int, NodeFrames] = screenshots.frames_of.by(caller, [other.id for other in others], 1)
    return page(
        request,
        caller,
        "node.html",
        detail=detail,
        node=node,
        near=others,
        frames=frames,
        ends=screenshots.nodes_by_id.by(caller, sorted(ends)),
    )

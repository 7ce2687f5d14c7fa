"""The overview: progress, waiting work with reasons, failures, workers and costs."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from pipeline.engine.backlog import Failure
from pipeline.interfaces.console import live
from pipeline.interfaces.console.addresses import url
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.console.words import count
from pipeline.interfaces.http.dependencies import InContext, reader
from pipeline.interfaces.http.places import place
from pipeline.operations import overview
from pipeline.operations.overview import Overview
from pipeline.storage.context import Context

router = APIRouter(prefix="/console", include_in_schema=False, dependencies=reader)
REASONS = 6
"""The most reasons that the card names; it counts the others."""
PARTS = ("alarm", "hour", "waiting", "spending", "fleet", "flows", "failures")
CSS = {
    "done": {"COMPLETED", "completed", "succeeded", "delivered"},
    "failed": {"FAILED", "PARTIAL_FAILED", "failed", "failed_permanent"},
    "paused": {"PAUSED", "CANCELLED"},
    "waiting": {"PENDING", "RETRYING", "READY_TO_MERGE", "QUEUED", "pending"},
}
"""The colours of the states of all flows; any other state is in work."""
REASON_CSS = {
    "operator": "paused",
    "paused": "paused",
    "spend": "failed",
    "breaker": "failed",
    "worker": "failed",
    "offline": "failed",
    "unserved": "failed",
}
_DOCUMENTS = {
    "COMPLETED": "done",
    "PARTIAL_FAILED": "attention",
    "FAILED": "attention",
    "PAUSED": "paused",
    "PENDING": "working",
    "SPLITTING": "working",
    "PROCESSING": "working",
    "READY_TO_MERGE": "working",
    "MERGING": "working",
    "CANCELLED": "cancelled",
}


_LISTS = {
    "documents": "/console/documents",
    "pages": "/console/documents",
    "songs": "/console/music/songs",
    "song_batches": "/console/music",
    "screenshots": "/console/screenshots",
    "screenshot_batches": "/console/screenshots/batches",
    "items": "/console/knowledge",
    "webhook_deliveries": "/console/events/webhooks",
}


class OverviewQuery(live.ViewQuery):
    """No fields: there is one overview."""


def css_of(state: str) -> str:
    """Return the CSS class of a state of any flow: `done`, `failed`, `paused`, `waiting`, or else `working`."""
    return next((css for css, states in CSS.items() if state in states), "working")


def list_of(kind: str, state: str = "") -> str:
    """Return the address of the list of these rows, filtered by state if the list can; empty without a list."""
    if kind not in _LISTS:
        return ""
    query = ""
    if kind == "documents" and state in _DOCUMENTS:
        query = f"?state={_DOCUMENTS[state]}"
    elif kind == "songs" and state:
        query = f"?status={state}"
    return url(_LISTS[kind]) + query


def page_of(failure: Failure) -> str:
    """Return the address of the page that shows the failure and its actions."""
    lists = {"song_batch": "song_batches", "webhook_delivery": "webhook_deliveries"}
    address = place(failure.kind, failure.id)
    return url(address) if address else list_of(lists.get(failure.kind, ""))


def units(kind: str, number: int) -> str:
    """Return `2 song batches` or `1 delivery`: the number of rows and their noun."""
    words = kind.replace("_", " ")
    if number == 1:
        words = words[:-3] + "y" if words.endswith("ies") else words.removesuffix("es" if "tches" in words else "s")
    return f"{count(number)} {words}"


def _pieces(view: Overview) -> dict[str, str]:
    """Return the HTML of each part of the screen by its element id."""
    values = {
        "overview": view,
        "css_of": css_of,
        "list_of": list_of,
        "page_of": page_of,
        "units": units,
        "reason_css": REASON_CSS,
        "most_reasons": REASONS,
        "most": max((minute.finished for minute in view.minutes), default=0),
    }
    return {f"overview-{part}": piece(f"overview/_{part}.html", **values) for part in PARTS}


@live.view("overview", every_s=5)
def fragments(context: Context, query: OverviewQuery) -> dict[str, str]:  # noqa: ARG001
    """Return HTML by element id: all parts of the screen."""
    return _pieces(overview.overview(context))


@router.get("/")
def show(request: Request, context: InContext) -> HTMLResponse:
    """Show the overview."""
    view = overview.overview(context)
    return screen(request, "overview/index.html", is_empty=view.is_empty, parts_of=_pieces(view))

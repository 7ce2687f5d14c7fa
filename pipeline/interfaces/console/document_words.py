"""A document's state in words."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.views import DocumentView, Kind, Reason
from pipeline.interfaces.console.words import plural

_D = DocumentStatus
_JUST = timedelta(seconds=5)


@dataclass(frozen=True)
class ShownState:
    """A state in a word, with its colour, its reason and its end."""

    css: str
    words: str
    why: str = ""
    until: datetime | None = None
    since: datetime | None = None


def state_of(document: DocumentView, reason: Reason | None, now: datetime) -> ShownState:
    """Return the document's state in a word, with its CSS class, and the reason and end of its waiting."""
    why, until = (reason.words, reason.until) if reason else ("", None)
    at_rest = {
        _D.COMPLETED: ("done", "completed"),
        _D.CANCELLED: ("paused", "cancelled"),
        _D.FAILED: ("failed", "failed"),
        _D.PARTIAL_FAILED: ("failed", f"{plural(document.failed_count, 'page')} failed"),
    }
    if document.status in at_rest:
        return ShownState(*at_rest[document.status], why)
    if document.status is _D.PAUSED:
        return ShownState("paused", "paused", why, since=until)
    moves = now - document.updated_at < _JUST
    if reason and reason.kind is Kind.CAPACITY and moves and document.completed_count + document.failed_count:
        return ShownState("working", "converting")  # between two pages
    if reason and reason.kind is not Kind.WORKING:
        return ShownState("waiting", "waiting", why, until)
    steps = {_D.SPLITTING: "splitting", _D.MERGING: "merging", _D.READY_TO_MERGE: "merging"}
    return ShownState("working", steps.get(document.status, "converting"), why, until)


PAGE: dict[PageStatus, tuple[str, str]] = {
    PageStatus.COMPLETED: ("done", "done"),
    PageStatus.FAILED: ("failed", "failed"),
    PageStatus.PROCESSING: ("working", "working"),
    PageStatus.PENDING: ("waiting", "waiting"),
    PageStatus.RETRYING: ("waiting", "retry"),
}
"""A page's state: its colour and its word."""

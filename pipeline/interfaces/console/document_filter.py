"""The filter of the document list: state, name and time, as a query and in words."""

from datetime import datetime, timedelta
from typing import Annotated, Literal
from urllib.parse import urlencode

from pydantic import StringConstraints

from pipeline.flows.documents.catalog import Filter
from pipeline.flows.documents.states import DocumentStatus
from pipeline.interfaces.console import live
from pipeline.interfaces.console.words import combined
from pipeline.interfaces.http.fields import CLEAN, Line

PATH = "/console/documents"
ROWS = 50
_D = DocumentStatus
GROUPS: dict[str, tuple[str, frozenset[DocumentStatus]]] = {
    "": ("All", frozenset()),
    "working": ("Working", frozenset({_D.PENDING, _D.SPLITTING, _D.PROCESSING, _D.READY_TO_MERGE, _D.MERGING})),
    "attention": ("Needs you", frozenset({_D.FAILED, _D.PARTIAL_FAILED})),
    "done": ("Done", frozenset({_D.COMPLETED})),
    "paused": ("Paused", frozenset({_D.PAUSED})),
    "cancelled": ("Cancelled", frozenset({_D.CANCELLED})),
}
"""Groups of states: the name in addresses, then the label and the states; no states means all."""
SINCE = {
    "": ("added any time", None),
    "hour": ("last hour", timedelta(hours=1)),
    "day": ("last 24 hours", timedelta(days=1)),
    "week": ("last 7 days", timedelta(days=7)),
    "month": ("last 30 days", timedelta(days=30)),
}
State = Literal["", "working", "attention", "done", "paused", "cancelled"]
Since = Literal["", "hour", "day", "week", "month"]
Cursor = Annotated[str, StringConstraints(max_length=500), CLEAN]


class DocumentsQuery(live.ViewQuery):
    """The filter of the list."""

    state: State = ""
    q: Line = ""
    since: Since = ""

    def filter(self, now: datetime) -> Filter:
        """Return the filter that operations accept. The chosen time, such as a week, counts back from `now`."""
        length = SINCE[self.since][1]
        return Filter(GROUPS[self.state][1], self.q.strip(), now - length if length else None)

    @property
    def words(self) -> str:
        """The filter in words, such as `under “Done”, added in the last hour`; empty for all documents."""
        named = f"with “{self.q.strip()}” in the name" if self.q.strip() else ""
        since = f"added in the {SINCE[self.since][0]}" if self.since else ""
        state = f"under “{GROUPS[self.state][0]}”" if self.state else ""
        return ", ".join(part for part in (state, named, since) if part)

    @property
    def query(self) -> dict[str, str]:
        """The query of an address, without empty values."""
        return combined({"state": self.state, "q": self.q, "since": self.since}, {})

    def address(self, path: str = "", **changed: str) -> str:
        """Return the address of the list with this filter, or of a path below it."""
        query = urlencode(combined({"state": self.state, "q": self.q, "since": self.since, **changed}, {}))
        return f"{PATH}{path}?{query}" if query else f"{PATH}{path}"

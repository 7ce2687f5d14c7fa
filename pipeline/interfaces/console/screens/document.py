"""One document: a strip of its pages, the picture of a page beside its text, and its attempts with differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape
from pydantic import Field

from pipeline.flows.documents.rules.difference import Difference, difference
from pipeline.flows.documents.states import PageStatus
from pipeline.flows.documents.strip import Cell
from pipeline.flows.documents.views import AttemptView, PageView
from pipeline.interfaces.console import live, page_text
from pipeline.interfaces.console.document_acts import acts, can_retry, can_retry_pages, choices
from pipeline.interfaces.console.document_words import PAGE, ShownState, state_of
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.http.dependencies import InContext, reader
from pipeline.interfaces.http.fields import HexId, Line
from pipeline.operations import documents as flow
from pipeline.operations.documents import Document
from pipeline.operations.events import Filter
from pipeline.providers import registry
from pipeline.settings import LOCAL
from pipeline.storage.context import Context

router = APIRouter(prefix="/console/documents", include_in_schema=False, dependencies=reader)
AROUND, STEP = 60, 20
"""The number of pages in the strip, and how far the shown page may move before the strip shifts."""
LISTED = 12
"""The most pages with problems that are named."""
MOST_ATTEMPTS = 50
_A4 = (595, 842)


class Tab(StrEnum):
    """The content beside the picture."""

    TEXT = "text"
    MARKDOWN = "markdown"
    ATTEMPTS = "attempts"


class DocumentQuery(live.ViewQuery):
    """The document, and the first page of the strip."""

    id: HexId
    first: Annotated[int, Field(ge=1, le=1_000_000)] = 1


@dataclass(frozen=True)
class Strip:
    """The pages that the strip shows."""

    cells: list[Cell]
    pages: int
    failed: list[int]
    doubtful: list[int]

    @property
    def first(self) -> int:
        """The number of its first page; 1 without pages."""
        return self.cells[0].page if self.cells else 1

    @property
    def before(self) -> int | None:
        """The last page before the strip; None if the strip shows page 1."""
        return self.first - 1 if self.first > 1 else None

    @property
    def after(self) -> int | None:
        """The first page after the strip; None if the strip shows the last page."""
        last = self.cells[-1].page if self.cells else self.pages
        return last + 1 if last < self.pages else None


@dataclass(frozen=True)
class Comparison:
    """An attempt's text compared with the page's."""

    attempt: AttemptView
    differences: Difference


@dataclass(frozen=True)
class Desk:
    """One page: its picture, of this width and height, and its text."""

    cell: Cell
    page: PageView
    reading: page_text.Reading
    size: tuple[float, float]
    tried: Sequence[AttemptView]
    compared: Comparison | None
    source: Markup
    garbled: Sequence[str]
    """Garbled words."""


def _window(page: int, pages: int) -> int:
    """Return the number of the strip's first page, for a strip around `page`."""
    return max(1, min((page - 1) // STEP * STEP - STEP + 1, pages - AROUND + 1))


def _strip(document: Document, first: int) -> Strip:
    failed = flow.page_numbers(document.id, LISTED + 1, status=PageStatus.FAILED) if document.failed_count else []
    doubtful = flow.page_numbers(document.id, LISTED + 1, doubtful=True)
    cells = flow.cells(document.id, first, first + AROUND - 1)
    return Strip(cells, document.pages, failed, doubtful)


@live.view("document", matches=lambda query: Filter(scope_id=query.id), every_s=10)
def fragments(context: Context, query: DocumentQuery) -> dict[str, str]:
    """Return HTML by element id: the state of the document, and each cell of the strip."""
    document = flow.status(query.id)
    shown = _strip(document, query.first)
    html: dict[str, str] = {"facts": piece("document/_facts.html", **_facts(context, document, shown))}
    for cell in shown.cells:
        values = {"cell": cell, "document": document, "page_words": PAGE, "at_page": None}
        html[f"cell-{cell.page}"] = piece("document/_cell.html", **values)
    return html


def _facts(context: Context, document: Document, shown: Strip) -> dict[str, Any]:
    state: ShownState = state_of(document, flow.reasons([document]).get(document.id), context.db.now())
    # Changes when the possible actions change.
    causes = document.status.name, bool(document.merged_path), document.outdated, bool(document.failed_count)
    return {"document": document, "strip": shown, "state": state, "version": "-".join(map(str, causes))}


@router.get("/{document_id}")
def show(
    request: Request,
    context: InContext,
    document_id: HexId,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    tab: Tab = Tab.TEXT,
    q: Line = "",
    attempt: Annotated[int | None, Query(ge=1, le=2**53 - 1)] = None,
) -> HTMLResponse:
    """Show the document with one of its pages."""
    document = flow.status(document_id)
    page = max(1, min(page, document.pages or 1))
    shown = _strip(document, _window(page, document.pages))
    cell = next((shown_cell for shown_cell in shown.cells if shown_cell.page == page), None)
    return screen(
        request,
        "document/page.html",
        **_facts(context, document, shown),
        q=q,
        tab=tab.value,
        acts=acts(document),
        choices=choices(context.settings),
        others=[name for name in registry.names(context.settings) if name not in {document.provider, LOCAL}],
        any_model=request.state.caller.is_admin,
        can_retry=can_retry(document),
        can_retry_pages=can_retry_pages(document),
        page_words=PAGE,
        at_page=page,
        desk=_desk(request, document, cell, tab, q, attempt) if cell else None,
    )


def _desk(request: Request, document: Document, cell: Cell, tab: Tab, words: str, attempt: int | None) -> Desk:
    """Return one page with its picture's size, its text, and what the tab shows beside the picture."""
    page = flow.page(document.id, cell.page)
    layout = flow.layouts(document.id, [cell.page]).get(cell.page)
    reading = page_text.reading(document.id, page.content, layout, request.state.caller.id, words)
    size = (reading.width, reading.height) if reading.width and reading.height else None
    stored_shape = flow.page_shape(document.id, page.page_source)
    tried = flow.attempts(document.id, cell.page, limit=MOST_ATTEMPTS) if tab is Tab.ATTEMPTS else []
    return Desk(
        cell,
        page,
        reading,
        size or stored_shape or _A4,
        tried,
        _compared(page, tried, attempt),
        source=page_text.marked(escape(page.content), words) if tab is Tab.MARKDOWN else Markup(),
        garbled=(layout or {}).get("garbled", ()),
    )


def _compared(page: PageView, tried: Sequence[AttemptView], attempt: int | None) -> Comparison | None:
    """Compare the requested attempt with the page's text; without it, the newest attempt with a different text.

    None: no attempt to compare.
    """
    with_text = [attempt_made for attempt_made in reversed(tried) if attempt_made.text]
    chosen = next((attempt_made for attempt_made in with_text if attempt_made.id == attempt), None)
    chosen = chosen or next((attempt_made for attempt_made in with_text if attempt_made.text != page.content), None)
    return Comparison(chosen, difference(page.content, chosen.text)) if chosen else None

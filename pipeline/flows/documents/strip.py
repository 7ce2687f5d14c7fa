"""A range of a document's pages for a strip of cells: their states, and the figures of their last attempts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select

from pipeline.engine.views import view_of
from pipeline.flows.documents.models import ATTEMPTS, PAGES
from pipeline.flows.documents.states import PageStatus
from pipeline.storage.context import Context


@dataclass(frozen=True)
class LastAttempt:
    """The last attempt whose claim still held when it ended; without its text."""

    id: int
    page: int
    provider: str
    model: str
    status: str
    cached: bool
    input_tokens: int
    output_tokens: int
    latency_ms: int
    cost: float
    created_at: datetime


@dataclass(frozen=True)
class Cell:
    """A page, without its text. `page`: its position in the result; `page_source`: its position in the file."""

    page: int
    page_source: int
    status: PageStatus
    provider: str
    model: str
    error: str | None
    attempts: int
    confidence: float | None
    doubtful: bool
    next_run_at: datetime | None
    updated_at: datetime
    tried: int = 0
    """Attempts in the ledger, over the page's whole life."""
    last: LastAttempt | None = None


_COLUMNS = [PAGES.c[name] for name in Cell.__dataclass_fields__ if name in PAGES.c]
_LAST = [ATTEMPTS.c[name] for name in LastAttempt.__dataclass_fields__]


def cells(context: Context, document_id: str, first: int, last: int) -> list[Cell]:
    """Return the pages at positions `first` to `last` of the result, both included, in order."""
    in_range = (PAGES.c.document_id == document_id, PAGES.c.page.between(first, last))
    query = select(*_COLUMNS).where(*in_range).order_by(PAGES.c.page)
    tried = (
        select(ATTEMPTS.c.page, func.count().label("tried"), func.max(ATTEMPTS.c.id).filter(ATTEMPTS.c.effective))
        .where(ATTEMPTS.c.document_id == document_id, ATTEMPTS.c.page.between(first, last))
        .group_by(ATTEMPTS.c.page)
    )
    with context.db.read() as session:
        rows = session.execute(query).all()
        counted: Mapping[int, Any] = {row.page: row for row in session.execute(tried)}
        ids = [row[2] for row in counted.values() if row[2] is not None]
        ended = session.execute(select(*_LAST).where(ATTEMPTS.c.id.in_(ids))) if ids else ()
        lasts = {row.page: view_of(LastAttempt, row) for row in ended}
    return [
        view_of(Cell, row, tried=counted[row.page].tried if row.page in counted else 0, last=lasts.get(row.page))
        for row in rows
    ]


def numbers(
    context: Context, document_id: str, limit: int, *, status: PageStatus | None = None, doubtful: bool = False
) -> list[int]:
    """Return the positions in the result of the first `limit` pages, in order; `status` and `doubtful` restrict them,
    together if both."""
    query = select(PAGES.c.page).where(PAGES.c.document_id == document_id).order_by(PAGES.c.page).limit(limit)
    if status is not None:
        query = query.where(PAGES.c.status == status)
    if doubtful:
        query = query.where(PAGES.c.doubtful)
    with context.db.read() as session:
        return list(session.execute(query).scalars())

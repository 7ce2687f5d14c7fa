"""Reading: documents, pages, attempts, figures."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select

from pipeline.engine.errors import UserError
from pipeline.engine.metrics import count_by, throughput
from pipeline.engine.views import view_of
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, LAYOUTS, PAGES
from pipeline.flows.documents.service import UnknownDocument
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.views import AttemptView, DocumentView, Figures, PageView
from pipeline.flows.documents.work.page import unpack_layout
from pipeline.storage.context import Context


def document(context: Context, document_id: str) -> DocumentView:
    """Raises `UnknownDocument`."""
    with context.db.read() as session:
        row = session.execute(select(DOCUMENTS).where(DOCUMENTS.c.id == document_id)).one_or_none()
    if row is None:
        raise UnknownDocument(document_id)
    return view_of(DocumentView, row)


def resolve(context: Context, prefix: str) -> str:
    """The id that begins with `prefix`, as people abbreviate it. Raises `UserError` if none or several do."""
    with context.db.read() as session:
        found = session.execute(
            select(DOCUMENTS.c.id).where(DOCUMENTS.c.id.startswith(prefix, autoescape=True)).limit(3)
        )
        ids = list(found.scalars())
    if prefix in ids:
        return prefix
    if not ids or not prefix:
        raise UnknownDocument(prefix)
    if len(ids) > 1:
        raise UserError(f"several documents begin with {prefix}: give more of the id", code="ambiguous")
    return str(ids[0])


def documents(
    context: Context, *, status: DocumentStatus | None = None, limit: int = 50, offset: int = 0
) -> list[DocumentView]:
    """Documents, the newest first."""
    query = select(DOCUMENTS).order_by(DOCUMENTS.c.created_at.desc(), DOCUMENTS.c.id).limit(limit).offset(offset)
    if status is not None:
        query = query.where(DOCUMENTS.c.status == status)
    with context.db.read() as session:
        return [view_of(DocumentView, row) for row in session.execute(query)]


def documents_by_id(context: Context, ids: Collection[str]) -> list[DocumentView]:
    """Those of the documents that there are."""
    with context.db.read() as session:
        # In portions: SQLite and PostgreSQL limit the parameters of one statement.
        portions = [list(ids)[start : start + 500] for start in range(0, len(ids), 500)]
        return [
            view_of(DocumentView, row)
            for portion in portions
            for row in session.execute(select(DOCUMENTS).where(DOCUMENTS.c.id.in_(portion)))
        ]


def pages(context: Context, document_id: str, *, status: PageStatus | None = None) -> list[PageView]:
    """The document's pages in order; none before it was split."""
    query = select(PAGES).where(PAGES.c.document_id == document_id).order_by(PAGES.c.page)
    if status is not None:
        query = query.where(PAGES.c.status == status)
    with context.db.read() as session:
        return [view_of(PageView, row) for row in session.execute(query)]


def layouts(context: Context, document_id: str, numbers: Collection[int] | None = None) -> dict[int, dict[str, Any]]:
    """What stands where on the document's pages, by page; not of pages whose converter does not know."""
    query = (
        select(PAGES.c.page, LAYOUTS.c.data)
        .join(LAYOUTS, LAYOUTS.c.page_id == PAGES.c.id)
        .where(PAGES.c.document_id == document_id)
    )
    wanted = None if numbers is None else set(numbers)
    if wanted is not None and not wanted:
        return {}
    with context.db.read() as session:
        rows = session.execute(query.execution_options(yield_per=100))
        return {row.page: unpack_layout(row.data) for row in rows if wanted is None or row.page in wanted}


def attempts(context: Context, document_id: str, page: int | None = None) -> list[AttemptView]:
    """The ledger of a document, or of one page of it, in the order of the attempts."""
    query = select(ATTEMPTS).where(ATTEMPTS.c.document_id == document_id).order_by(ATTEMPTS.c.page, ATTEMPTS.c.id)
    if page is not None:
        query = query.where(ATTEMPTS.c.page == page)
    with context.db.read() as session:
        return [view_of(AttemptView, row) for row in session.execute(query)]


def figures(context: Context) -> Figures:
    """Documents and pages by state, and the last hour's throughput. Source 001, section 10.2."""
    now = datetime.now(UTC)
    with context.db.read() as session:
        by_status = count_by(session, DOCUMENTS.c.status)
        by_page = count_by(session, PAGES.c.status)
        last_hour = throughput(session, ATTEMPTS, now - timedelta(hours=1), now)
    return Figures(
        documents={status.name: by_status[status] for status in DocumentStatus if status in by_status},
        pages={status.name: by_page[status] for status in PageStatus if status in by_page},
        last_hour=last_hour,
    )

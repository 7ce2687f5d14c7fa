"""The full text of documents: indexes pages in portions after their document is merged.

The merging transaction does not index, since writing ten thousand pages at once would block all other writers. The
document's row records that indexing is due, so `catch_up` completes an interrupted run.
"""

import time
from typing import Any

import structlog
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pipeline.engine.isolation import isolated
from pipeline.engine.transaction import Tx
from pipeline.flows.documents.models import DOCUMENTS, FULL_TEXT, PAGES
from pipeline.flows.documents.rules.result import has_text
from pipeline.flows.documents.states import PageStatus
from pipeline.flows.documents.work.document import lock
from pipeline.storage.context import Context
from pipeline.storage.fulltext import Text

log = structlog.get_logger(__name__)
_PORTION = 50
"""Pages indexed in one transaction."""
_MOST_DOCUMENTS = 1000
CATCH_UP_S = 5.0


def index(context: Context, document_id: str) -> int:
    """Index the texts of a merged document's pages for the search, unless they are indexed, and return how many pages.
    Stops if the document is deleted or merged again."""
    with context.db.read() as session:
        query = select(DOCUMENTS.c.finished_at).where(DOCUMENTS.c.id == document_id, DOCUMENTS.c.unindexed)
        merged_at = session.execute(query).scalar()
    if merged_at is None:
        return 0
    done = after = 0
    while rows := context.db.run(lambda tx: _portion(tx, document_id, merged_at, after)):  # noqa: B023
        done, after = done + len(rows), rows[-1].page
    return done


def _portion(session: Session, document_id: str, merged_at: Any, after: int) -> list[Any]:
    """Index a portion of the pages after `after`, and return them. Behind the last page, mark the document as indexed,
    and return none; none, too, if it was deleted or merged again."""
    document = lock(session, document_id)
    if document is None or document.finished_at != merged_at:
        return []
    pages = (
        select(PAGES.c.id, PAGES.c.page, PAGES.c.status, PAGES.c.content)
        .where(PAGES.c.document_id == document_id, PAGES.c.page > after)
        .order_by(PAGES.c.page)
        .limit(_PORTION)
    )
    rows = list(session.execute(pages))
    if not rows:
        session.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(unindexed=False))
        return []
    with_text = [row for row in rows if has_text(PageStatus(row.status).name, row.content)]
    FULL_TEXT.remove(session, list({row.id for row in rows} - {row.id for row in with_text}))
    FULL_TEXT.put(session, [_text(row, document) for row in with_text])
    return rows


def _text(page: Any, document: Any) -> Text:
    """Return the words that find a page: its headings, its text, and on the first page the file's name."""
    headings = [line.lstrip("#") for line in page.content.splitlines() if line.startswith("#")]
    return Text(page.id, "\n".join([document.filename] * (page.page == 1) + headings), "", page.content)


def forget(session: Session, document_id: str) -> None:
    """Remove a document's pages from the index, before their rows are deleted."""
    FULL_TEXT.remove(
        session, session.execute(select(PAGES.c.id).where(PAGES.c.document_id == document_id)).scalars().all()
    )


def forget_ahead(context: Context, document_id: str) -> None:
    """Remove a document's pages from the index in portions, before a deletion, since many pages take long.

    If the deletion does not follow, `catch_up` indexes the document again.
    """
    after = 0

    def portion(tx: Tx) -> int:
        document = lock(tx, document_id)
        if document is None or document.merged_path is None:
            return 0
        tx.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(unindexed=True))
        pages = select(PAGES.c.id, PAGES.c.page).where(PAGES.c.document_id == document_id, PAGES.c.page > after)
        rows = tx.execute(pages.order_by(PAGES.c.page).limit(_PORTION)).all()
        FULL_TEXT.remove(tx, [row.id for row in rows])
        return rows[-1].page if rows else 0

    while after := context.db.run(portion):
        pass


def catch_up(context: Context) -> int:
    """Index merged documents that the search lacks, the last merged first, for about `CATCH_UP_S`; return the number of
    pages."""
    unindexed = select(DOCUMENTS.c.id).where(DOCUMENTS.c.unindexed, DOCUMENTS.c.finished_at.is_not(None))
    with context.db.read() as session:
        ids = session.execute(unindexed.order_by(DOCUMENTS.c.finished_at.desc()).limit(_MOST_DOCUMENTS)).scalars().all()
    until, done = time.monotonic() + CATCH_UP_S, 0
    for document_id in ids:
        if time.monotonic() > until:
            break
        with isolated("document.not_indexed", document=document_id):
            done += index(context, document_id)
    if done:
        log.info("documents.indexed", pages=done)
    return done

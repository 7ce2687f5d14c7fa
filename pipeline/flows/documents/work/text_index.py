"""The full text of documents: pages are indexed in portions once their document is merged.

Not in the transaction that merges: whoever writes ten thousand pages at once keeps all others waiting. A row says that
its document is still to be indexed, so what is cut off here is caught up with later.
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
    """Index the document's pages if that is to be done; how many. Stops if it is merged again meanwhile."""
    with context.db.read() as session:
        mine = select(DOCUMENTS.c.finished_at).where(DOCUMENTS.c.id == document_id, DOCUMENTS.c.unindexed)
        merged_at = session.execute(mine).scalar()
    if merged_at is None:
        return 0
    done = after = 0
    while rows := context.db.run(lambda tx: _portion(tx, document_id, merged_at, after)):  # noqa: B023
        done, after = done + len(rows), rows[-1].page
    return done


def _portion(session: Session, document_id: str, merged_at: Any, after: int) -> list[Any]:
    """Index the pages that follow `after`; those that it was about. None are left: the document is indexed."""
    document = lock(session, document_id)
    if document is None or document.finished_at != merged_at:
        return []
    some = (
        select(PAGES.c.id, PAGES.c.page, PAGES.c.status, PAGES.c.content)
        .where(PAGES.c.document_id == document_id, PAGES.c.page > after)
        .order_by(PAGES.c.page)
        .limit(_PORTION)
    )
    rows = list(session.execute(some))
    if not rows:
        session.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(unindexed=False))
        return []
    with_text = [row for row in rows if has_text(PageStatus(row.status).name, row.content)]
    FULL_TEXT.remove(session, list({row.id for row in rows} - {row.id for row in with_text}))
    FULL_TEXT.put(session, [_text(row, document) for row in with_text])
    return rows


def _text(page: Any, document: Any) -> Text:
    """What a page is found by: its headings, its text, and the first one by the file's name."""
    headings = [line.lstrip("#") for line in page.content.splitlines() if line.startswith("#")]
    return Text(page.id, "\n".join([document.filename] * (page.page == 1) + headings), "", page.content)


def forget(session: Session, document_id: str) -> None:
    """Take a document's pages out of the index, before their rows go."""
    FULL_TEXT.remove(
        session, session.execute(select(PAGES.c.id).where(PAGES.c.document_id == document_id)).scalars().all()
    )


def forget_ahead(context: Context, document_id: str) -> None:
    """The same in portions, for a document that is deleted next: of many pages it takes long.

    Should it not be deleted after all, it is indexed again.
    """
    after = 0

    def portion(tx: Tx) -> int:
        document = lock(tx, document_id)
        if document is None or document.merged_path is None:
            return 0
        tx.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(unindexed=True))
        some = select(PAGES.c.id, PAGES.c.page).where(PAGES.c.document_id == document_id, PAGES.c.page > after)
        rows = tx.execute(some.order_by(PAGES.c.page).limit(_PORTION)).all()
        FULL_TEXT.remove(tx, [row.id for row in rows])
        return rows[-1].page if rows else 0

    while after := context.db.run(portion):
        pass


def catch_up(context: Context) -> int:
    """Index for a while what was merged before there was an index, or by a worker that died over it; how many pages."""
    left = select(DOCUMENTS.c.id).where(DOCUMENTS.c.unindexed, DOCUMENTS.c.finished_at.is_not(None))
    with context.db.read() as session:
        found = session.execute(left.order_by(DOCUMENTS.c.finished_at.desc()).limit(_MOST_DOCUMENTS)).scalars().all()
    until, done = time.monotonic() + CATCH_UP_S, 0
    for document_id in found:
        if time.monotonic() > until:
            break
        with isolated("document.not_indexed", document=document_id):
            done += index(context, document_id)
    if done:
        log.info("documents.indexed", pages=done)
    return done

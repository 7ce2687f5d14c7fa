"""Full-text search for pages of merged documents."""

from typing import Any

from sqlalchemy import Select, func, select

from pipeline.engine.errors import UserError
from pipeline.flows.documents.catalog import Filter
from pipeline.flows.documents.models import DOCUMENTS, FULL_TEXT, PAGES
from pipeline.flows.documents.views import Hit, Hits
from pipeline.reading.export import markdown
from pipeline.storage.context import Context
from pipeline.storage.fulltext import looser
from pipeline.storage.fusion import excerpt, spots

MAX_LIMIT = 200
MAX_WORDS_CHARS = 4000
PASSAGE_CHARS = 240


def search(
    context: Context, words: str, which: Filter | None = None, *, document_id: str = "", limit: int = 20
) -> Hits:
    """Find pages with these words, best first: in documents that match `which`, and only in `document_id` if it is
    given.

    If no page has all words, find pages with some of them (`Hits.any_word`). `limit` is at most 200. Raises `UserError`
    without words.
    """
    if not words.strip():
        raise UserError("say what to look for", code="empty_query")
    words, limit = words.strip()[:MAX_WORDS_CHARS], max(1, min(limit, MAX_LIMIT))
    only = _pages_of(which or Filter(), document_id)
    count_unindexed = select(func.count()).select_from(DOCUMENTS).where(DOCUMENTS.c.unindexed)
    with context.db.read() as session:
        ids = FULL_TEXT.search(session, words, limit, only=only)
        loose = not ids
        for fewer in looser(words) if loose else ():
            ids = ids or FULL_TEXT.search(session, fewer, limit, only=only, any_word=True)
        columns = (DOCUMENTS.c.filename, DOCUMENTS.c.source_path, *PAGES.c)
        pages = select(*columns).join(DOCUMENTS, DOCUMENTS.c.id == PAGES.c.document_id).where(PAGES.c.id.in_(ids))
        rows = {row.id: row for row in session.execute(pages)}
        unindexed = session.execute(count_unindexed).scalar_one()
    hits = [_hit(rows[page_id], words) for page_id in ids if page_id in rows]
    return Hits(hits, loose and bool(hits), unindexed)


def _hit(page: Any, words: str) -> Hit:
    passage = excerpt(markdown.plain_text(page.content), words, PASSAGE_CHARS)
    return Hit(
        page.document_id, page.filename, page.source_path, page.page, page.page_source, passage, spots(passage, words)
    )


def _pages_of(which: Filter, document_id: str) -> Select[int] | None:
    """Return a query for the pages to search; None for all."""
    conditions = which.where() + ([DOCUMENTS.c.id == document_id] if document_id else [])
    if not conditions:
        return None
    return select(PAGES.c.id).join(DOCUMENTS, DOCUMENTS.c.id == PAGES.c.document_id).where(*conditions)

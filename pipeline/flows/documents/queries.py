"""Reads of documents, pages, attempts and figures, as plain objects detached from the database."""

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from pipeline.engine.claims import in_states
from pipeline.engine.errors import UserError
from pipeline.engine.metrics import count_by, throughput
from pipeline.engine.tables import portions
from pipeline.engine.views import plain, view_of
from pipeline.flows.documents import files
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, ESCALATIONS, LAYOUTS, PAGES
from pipeline.flows.documents.rules import result
from pipeline.flows.documents.states import AT_REST, OPEN, PAGE, DocumentStatus, EscalationState, PageEvent, PageStatus
from pipeline.flows.documents.views import (
    AttemptView,
    CostView,
    DocumentView,
    EscalationView,
    Figures,
    Load,
    PageView,
)
from pipeline.reading.export import docling
from pipeline.reading.files.filetype import MIME_TYPES
from pipeline.storage import short_ids
from pipeline.storage.context import Context

_PORTION = 8
"""Pages that an export reads at once."""


class UnknownDocument(UserError):
    """No document has this id."""

    def __init__(self, document_id: str) -> None:
        super().__init__(f"there is no document {document_id}; see `penstock documents list`", code="unknown_document")


def document_view(context: Context, row: Any) -> DocumentView:
    """Return the row's view; the path of its result follows the current data folder, which may have moved."""
    merged = files.output_path(context.settings, row.id, row.filename) if row.merged_path else None
    return view_of(DocumentView, row, merged_path=str(merged) if merged else None)


def document(context: Context, document_id: str) -> DocumentView:
    """Return a document. Raises `UnknownDocument`."""
    with context.db.read() as session:
        row = session.execute(select(DOCUMENTS).where(DOCUMENTS.c.id == document_id)).one_or_none()
    if row is None:
        raise UnknownDocument(document_id)
    return document_view(context, row)


def resolve(context: Context, beginning: str) -> str:
    """Return the id that equals or starts with `beginning`. Raises `UnknownDocument` without a match, `UserError` for
    several."""
    document_id = short_ids.resolve(context, DOCUMENTS.c.id, beginning, "documents")
    if document_id is None:
        raise UnknownDocument(beginning)
    return document_id


def documents_by_id(context: Context, ids: Collection[str]) -> list[DocumentView]:
    """Return the documents with these ids, in any order; leave out unknown ids."""
    with context.db.read() as session:
        return [
            document_view(context, row)
            for portion in portions(ids)
            for row in session.execute(select(DOCUMENTS).where(DOCUMENTS.c.id.in_(portion)))
        ]


def pages(
    context: Context,
    document_id: str,
    *,
    status: PageStatus | None = None,
    doubtful: bool = False,
    after: int = 0,
    limit: int | None = None,
) -> list[PageView]:
    """Return the document's pages with their texts, by position in the result; `after`: start behind this position.

    Empty for an unknown document, and until it is split. `doubtful`: only pages with doubtful text.
    """
    query = select(PAGES).where(PAGES.c.document_id == document_id, PAGES.c.page > after).order_by(PAGES.c.page)
    query = query.limit(limit)
    if status is not None:
        query = query.where(PAGES.c.status == status)
    if doubtful:
        query = query.where(PAGES.c.doubtful)
    with context.db.read() as session:
        rows = session.execute(query).all()
        known = _escalations(session, rows)
    return [view_of(PageView, row, escalation=known.get(row.id)) for row in rows]


def _escalations(session: Session, pages: Sequence[Any]) -> dict[int, EscalationView]:
    """Return the escalations of these pages of one document, in the order of their ids, by page id."""
    if not pages:
        return {}
    c = ESCALATIONS.c
    of_pages = (c.document_id == pages[0].document_id, c.page.between(pages[0].page, pages[-1].page))
    return {row.page_id: view_of(EscalationView, row) for row in session.execute(select(ESCALATIONS).where(*of_pages))}


def escalated_to(session: Session, document_id: str) -> dict[str, tuple[int, float]]:
    """Return the number of pages that went to another provider, and their cost, by that provider."""
    c = ESCALATIONS.c
    unsent = (EscalationState.WAITING, EscalationState.UNPAID)
    query = select(c.provider, func.count(), func.sum(c.cost)).where(
        c.document_id == document_id, c.state.not_in(unsent)
    )
    rows = session.execute(query.group_by(c.provider).order_by(func.min(c.page))).all()
    return {provider: (pages, cost or 0.0) for provider, pages, cost in rows}


def commonest_error(session: Session, document_id: str) -> str:
    """Return the error that most of the failed pages share, the first in the alphabet on a tie; empty without failed
    pages."""
    failed = (PAGES.c.document_id == document_id, PAGES.c.status == PageStatus.FAILED, PAGES.c.error.is_not(None))
    query = select(PAGES.c.error).where(*failed).group_by(PAGES.c.error).order_by(func.count().desc(), PAGES.c.error)
    return session.execute(query.limit(1)).scalar_one_or_none() or ""


def page(context: Context, document_id: str, number: int) -> PageView:
    """Return a page by its position in the result, from 1; its number in the file, `page_source`, may differ. Raises
    `UnknownDocument`, or `UserError` for an unknown page."""
    row = _page(context, document_id, number, PAGES)
    with context.db.read() as session:
        known = _escalations(session, [row])
    return view_of(PageView, row, escalation=known.get(row.id))


def page_source(context: Context, document_id: str, number: int) -> int:
    """Return the number, from 1, that a page has in the file. `number`: its position in the result. Raises
    `UnknownDocument`, or `UserError` for an unknown page."""
    return int(_page(context, document_id, number, PAGES.c.page_source).page_source)


def _page(context: Context, document_id: str, number: int, *columns: Any) -> Any:
    query = select(*columns).where(PAGES.c.document_id == document_id, PAGES.c.page == number)
    with context.db.read() as session:
        row = session.execute(query).one_or_none()
    if row is None:
        document(context, document_id)
        with context.db.read() as session:
            raise no_page(session, document_id, number)
    return row


def no_page(session: Session, document_id: str, number: int) -> UserError:
    """Return, without raising it, the error for an unknown page. If `number` is a page of the file, the message names
    its position in the result."""
    query = select(PAGES.c.page).where(PAGES.c.document_id == document_id, PAGES.c.page_source == number)
    place = session.execute(query).scalar()
    hint = f"; page {number} of the file is page {place} here" if place else ""
    return UserError(f"document {document_id} has no page {number}{hint}", code="unknown_page")


def layouts(context: Context, document_id: str, numbers: Collection[int] | None = None) -> dict[int, dict[str, Any]]:
    """Return the stored layouts of all pages or of `numbers`, by position in the result; leave out pages without a
    layout."""
    query = (
        select(PAGES.c.page, LAYOUTS.c.data)
        .join(LAYOUTS, LAYOUTS.c.page_id == PAGES.c.id)
        .where(PAGES.c.document_id == document_id)
        .execution_options(yield_per=100)
    )
    parts = [query] if numbers is None else [query.where(PAGES.c.page.in_(portion)) for portion in portions(numbers)]
    with context.db.read() as session:
        return {row.page: row.data for part in parts for row in session.execute(part)}


def layout_json(context: Context, document_id: str, number: int | None = None) -> dict[str, Any]:
    """Return a dict, ready for JSON, with the blocks of all pages, or of the page at position `number` of the result,
    and their boxes.

    Raises `UnknownDocument`, or `UserError` for an unknown page.
    """
    view = document(context, document_id)
    if number is None:
        entries = list(layout_pages(context, document_id))
    else:
        only = page(context, document_id, number)
        entries = [result.layout_page(plain(only), layouts(context, document_id, [number]))]
    return result.layout_head(plain(view)) | {"pages": entries}


def layout_pages(context: Context, document_id: str) -> Iterator[dict[str, Any]]:
    """Yield the blocks of each page, as in `layout_json`, while memory holds a few pages."""
    after = 0
    while views := pages(context, document_id, after=after, limit=_PORTION):
        known = layouts(context, document_id, [view.page for view in views])
        yield from (result.layout_page(plain(view), known) for view in views)
        after = views[-1].page


def characters(context: Context, document_ids: Collection[str]) -> int:
    """Return the number of characters of all pages' texts of these documents."""
    query = select(func.sum(func.length(PAGES.c.content))).where(PAGES.c.document_id.in_(document_ids))
    with context.db.read() as session:
        return session.execute(query).scalar_one() or 0


def docling_document(
    context: Context, document_id: str, picture: docling.PictureData = lambda _: None
) -> dict[str, Any]:
    """Return the document in the format of the Docling project, as a dict ready for JSON.

    `picture` gets the link of a picture, and returns its `data:` URI, or None to leave its data out. Raises
    `UnknownDocument`.
    """
    facts = docling_facts(context, document_id)
    return docling.document(docling.Parts(layout_pages(context, document_id), picture), **facts)


def docling_facts(context: Context, document_id: str) -> dict[str, Any]:
    """Return what identifies the document in the format of the Docling project: arguments of `docling.document`. Raises
    `UnknownDocument`."""
    view = document(context, document_id)
    # The id fits Docling's 64-bit hash, and identifies content and options.
    return {"filename": view.filename, "mimetype": MIME_TYPES[view.type], "digest": int(view.id, 16)}


def page_texts(context: Context, document_id: str, *, joined: bool = True) -> list[tuple[int, str]]:
    """Return (page number in the file, Markdown) of each page, in order; a missing page has its reason as its text.
    Empty for an unknown document.

    `joined`: move a table that spans pages to its first page.
    """
    ordered = [plain(page) for page in pages(context, document_id)]
    texts = (
        result.page_texts(ordered, layouts(context, document_id, result.joinable(ordered)))
        if joined
        else [result.page_text(page) for page in ordered]
    )
    return [(page["page_source"], text) for page, text in zip(ordered, texts, strict=True)]


def attempts(
    context: Context,
    document_id: str,
    page: int | None = None,
    *,
    after: tuple[int, int] | None = None,
    limit: int | None = None,
) -> list[AttemptView]:
    """Return the ledger of a document, or of the page at this position of the result: by page, oldest attempt first.

    `after`: start behind this (page, attempt id).
    """
    number, key = ATTEMPTS.c.page, ATTEMPTS.c.id
    shown = [ATTEMPTS.c[name] for name in AttemptView.__dataclass_fields__]  # not the raw replies, which are long
    query = select(*shown).where(ATTEMPTS.c.document_id == document_id).order_by(number, key).limit(limit)
    if page is not None:
        query = query.where(number == page)
    if after is not None:
        query = query.where(or_(number > after[0], and_(number == after[0], key > after[1])))
    with context.db.read() as session:
        return [view_of(AttemptView, row) for row in session.execute(query)]


def doubtful_pages(context: Context, filename: str, size_bytes: int) -> list[int]:
    """Return the numbers in the file, ascending, of pages that are doubtful in any document of this name and size."""
    query = (
        select(PAGES.c.page_source)
        .join(DOCUMENTS, DOCUMENTS.c.id == PAGES.c.document_id)
        .where(DOCUMENTS.c.filename == filename, DOCUMENTS.c.size_bytes == size_bytes, PAGES.c.doubtful)
    )
    with context.db.read() as session:
        return sorted(set(session.scalars(query)))


def paid_attempts(context: Context, document_id: str) -> list[AttemptView]:
    """Return the document's attempts, oldest first, with the call that answered in place of each copy from the cache:
    its time, tokens and cost, at this document's page. Leaves out copies whose call retention removed."""
    own = select(ATTEMPTS).where(ATTEMPTS.c.document_id == document_id).order_by(ATTEMPTS.c.page, ATTEMPTS.c.id)
    with context.db.read() as session:
        rows = session.execute(own).all()
        keys = {row.cache_key for row in rows if row.cached and row.cache_key}
        answered: dict[str, Any] = {}
        for portion in portions(keys):
            called = (ATTEMPTS.c.cache_key.in_(portion), ~ATTEMPTS.c.cached, ATTEMPTS.c.status == "completed")
            for row in session.execute(select(ATTEMPTS).where(*called).order_by(ATTEMPTS.c.id)):
                answered[row.cache_key] = row
    calls = [(row, answered.get(row.cache_key) if row.cached else row) for row in rows]
    return [view_of(AttemptView, call, page=row.page, page_source=row.page_source) for row, call in calls if call]


def costs(context: Context, document_id: str) -> list[CostView]:
    """Return the sums of a document's attempts by provider and model, dearest first, without attempts that retention
    removed."""
    c = ATTEMPTS.c
    cost = func.sum(c.cost)
    query = (
        select(
            c.provider,
            c.model,
            func.count().label("attempts"),
            func.count().filter(c.cached).label("cached"),
            func.sum(c.input_tokens).label("input_tokens"),
            func.sum(c.output_tokens).label("output_tokens"),
            cost.label("cost"),
        )
        .where(c.document_id == document_id)
        .group_by(c.provider, c.model)
        .order_by(cost.desc(), c.provider, c.model)
    )
    with context.db.read() as session:
        return [view_of(CostView, row, cost=round(row.cost, 9)) for row in session.execute(query)]


def count_pages(session: Session) -> dict[int, int]:
    """Count the pages of all documents by state; leave out states without pages.

    Settled pages are too many to count, so the documents' counters supply them.
    """
    totals = (func.sum(DOCUMENTS.c.completed_count), func.sum(DOCUMENTS.c.failed_count))
    completed, failed = session.execute(select(*totals)).one()
    retrying = func.count().filter(PAGES.c.status == PageStatus.RETRYING)
    claimable = select(func.count(), retrying).where(in_states(PAGES, PAGE.sources(PageEvent.CLAIM)))
    waiting, retries = session.execute(claimable).one()
    held = session.execute(select(func.count()).select_from(PAGES).where(PAGES.c.claim_id.is_not(None))).scalar_one()
    counts = {
        PageStatus.PENDING: waiting - retries,
        PageStatus.RETRYING: retries,
        PageStatus.PROCESSING: held,
        PageStatus.COMPLETED: completed,
        PageStatus.FAILED: failed,
    }
    return {int(state): int(count) for state, count in counts.items() if count}


def load_beside(context: Context, ids: Collection[str], provider: str) -> Load:
    """Return the number of the provider's open documents other than `ids`, and of their unconverted pages."""
    unfinished = DOCUMENTS.c.pages - DOCUMENTS.c.completed_count - DOCUMENTS.c.failed_count
    query = select(DOCUMENTS.c.id, unfinished.label("pages")).where(
        in_states(DOCUMENTS, OPEN), DOCUMENTS.c.provider == provider
    )
    with context.db.read() as session:
        others = [row.pages for row in session.execute(query) if row.id not in ids]
    return Load(len(others), sum(others))


def figures(context: Context) -> Figures:
    """Return the counts of documents and pages by state, and the last hour's throughput. Rule:
    docs/sources/documents.md#monitoring."""
    now = context.db.now()
    with context.db.read() as session:
        by_status = count_by(session, DOCUMENTS.c.status)
        by_page = count_pages(session)
        last_hour = throughput(session, ATTEMPTS, now - timedelta(hours=1), now)
    return Figures(
        documents={status.name: by_status[status] for status in DocumentStatus if status in by_status},
        pages={status.name: by_page[status] for status in PageStatus if status in by_page},
        last_hour=last_hour,
    )


def unfinished(session: Session, document_ids: Collection[str]) -> set[str]:
    """Return the ids of documents that can still cause calls, out of these: a paused one can while workers hold its
    pages."""
    claimed = select(PAGES.c.id).where(PAGES.c.document_id == DOCUMENTS.c.id, PAGES.c.claim_id.is_not(None)).exists()
    rests = or_(DOCUMENTS.c.status.in_(AT_REST), and_(DOCUMENTS.c.status == DocumentStatus.PAUSED, ~claimed))
    works = and_(DOCUMENTS.c.id.in_(document_ids), ~rests)
    return set(session.execute(select(DOCUMENTS.c.id).where(works)).scalars())

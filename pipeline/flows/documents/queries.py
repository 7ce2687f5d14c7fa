"""What one may read: documents, pages, attempts and figures, as plain objects detached from the database."""

from collections.abc import Collection
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
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, LAYOUTS, PAGES
from pipeline.flows.documents.rules import result
from pipeline.flows.documents.states import AT_REST, OPEN, PAGE, DocumentStatus, PageEvent, PageStatus
from pipeline.flows.documents.views import AttemptView, CostView, DocumentView, Figures, Load, PageView
from pipeline.reading.export import docling
from pipeline.reading.files.filetype import MIME_TYPES
from pipeline.storage import short_ids
from pipeline.storage.context import Context


class UnknownDocument(UserError):
    """There is no document with this id."""

    def __init__(self, document_id: str) -> None:
        super().__init__(f"there is no document {document_id}; see `penstock documents list`", code="unknown_document")


def document_view(context: Context, row: Any) -> DocumentView:
    """The row for callers: its result is in the data folder as it is named now, which may have been moved since."""
    merged = files.output_path(context.settings, row.id, row.filename) if row.merged_path else None
    return view_of(DocumentView, row, merged_path=str(merged) if merged else None)


def document(context: Context, document_id: str) -> DocumentView:
    """Raises `UnknownDocument`."""
    with context.db.read() as session:
        row = session.execute(select(DOCUMENTS).where(DOCUMENTS.c.id == document_id)).one_or_none()
    if row is None:
        raise UnknownDocument(document_id)
    return document_view(context, row)


def resolve(context: Context, beginning: str) -> str:
    """The id that begins so. Raises `UserError` if none or several do."""
    found = short_ids.resolve(context, DOCUMENTS.c.id, beginning, "documents")
    if found is None:
        raise UnknownDocument(beginning)
    return found


def documents_by_id(context: Context, ids: Collection[str]) -> list[DocumentView]:
    """Those of the documents that exist."""
    with context.db.read() as session:
        return [
            document_view(context, row)
            for some in portions(ids)
            for row in session.execute(select(DOCUMENTS).where(DOCUMENTS.c.id.in_(some)))
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
    """The document's pages in order, those after page `after`; none before it is split."""
    query = select(PAGES).where(PAGES.c.document_id == document_id, PAGES.c.page > after).order_by(PAGES.c.page)
    query = query.limit(limit)
    if status is not None:
        query = query.where(PAGES.c.status == status)
    if doubtful:
        query = query.where(PAGES.c.doubtful)
    with context.db.read() as session:
        return [view_of(PageView, row) for row in session.execute(query)]


def commonest_error(session: Session, document_id: str) -> str:
    """What most of its failed pages failed with; empty if none did."""
    failed = (PAGES.c.document_id == document_id, PAGES.c.status == PageStatus.FAILED, PAGES.c.error.is_not(None))
    query = select(PAGES.c.error).where(*failed).group_by(PAGES.c.error).order_by(func.count().desc(), PAGES.c.error)
    return session.execute(query.limit(1)).scalar_one_or_none() or ""


def page(context: Context, document_id: str, number: int) -> PageView:
    """Raises `UnknownDocument`, or `UserError` if it has no such page."""
    return view_of(PageView, _page(context, document_id, number, PAGES))


def page_source(context: Context, document_id: str, number: int) -> int:
    """Which page of the file it is. Raises as `page` does."""
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
    """The error for a page that a document does not have; says so if the file has one of this number."""
    query = select(PAGES.c.page).where(PAGES.c.document_id == document_id, PAGES.c.page_source == number)
    place = session.execute(query).scalar()
    hint = f"; page {number} of the file is page {place} here" if place else ""
    return UserError(f"document {document_id} has no page {number}{hint}", code="unknown_page")


def layouts(context: Context, document_id: str, numbers: Collection[int] | None = None) -> dict[int, dict[str, Any]]:
    """Layouts by page number, of all pages or of `numbers`; none of a page whose converter gave none."""
    query = (
        select(PAGES.c.page, LAYOUTS.c.data)
        .join(LAYOUTS, LAYOUTS.c.page_id == PAGES.c.id)
        .where(PAGES.c.document_id == document_id)
        .execution_options(yield_per=100)
    )
    parts = [query] if numbers is None else [query.where(PAGES.c.page.in_(some)) for some in portions(numbers)]
    with context.db.read() as session:
        return {row.page: row.data for part in parts for row in session.execute(part)}


def layout_json(context: Context, document_id: str, number: int | None = None) -> dict[str, Any]:
    """The blocks of each page, or of one, with their boxes, as JSON. Raises `UnknownDocument` or `UserError`."""
    found = pages(context, document_id) if number is None else [page(context, document_id, number)]
    known = layouts(context, document_id, None if number is None else [number])
    return result.layout_json(plain(document(context, document_id)), [plain(one) for one in found], known)


def docling_document(
    context: Context, document_id: str, picture: docling.PictureData = lambda _: None
) -> dict[str, Any]:
    """The document in the format of the Docling project, as JSON. `picture`: which pictures to put into it.

    Raises `UnknownDocument`."""
    view = document(context, document_id)
    layout = layout_json(context, document_id)
    # Ids are 64 bits, and the same content under the same options finds the same document again.
    return docling.document(
        layout["pages"],
        filename=view.filename,
        mimetype=MIME_TYPES[view.type],
        digest=int(document_id, 16),
        picture=picture,
    )


def page_texts(context: Context, document_id: str, *, joined: bool = True) -> list[tuple[int, str]]:
    """(page number in the file, Markdown) of each page. `joined`: a table over several pages is with the first."""
    found = [plain(page) for page in pages(context, document_id)]
    texts = (
        result.page_texts(found, layouts(context, document_id, result.joinable(found)))
        if joined
        else [result.page_text(page) for page in found]
    )
    return [(page["page_source"], text) for page, text in zip(found, texts, strict=True)]


def attempts(
    context: Context,
    document_id: str,
    page: int | None = None,
    *,
    after: tuple[int, int] | None = None,
    limit: int | None = None,
) -> list[AttemptView]:
    """The ledger of a document, or of one of its pages, oldest attempt of each page first.

    `after`: beyond this page's attempt with this id.
    """
    number, key = ATTEMPTS.c.page, ATTEMPTS.c.id
    query = select(ATTEMPTS).where(ATTEMPTS.c.document_id == document_id).order_by(number, key).limit(limit)
    if page is not None:
        query = query.where(number == page)
    if after is not None:
        query = query.where(or_(number > after[0], and_(number == after[0], key > after[1])))
    with context.db.read() as session:
        return [view_of(AttemptView, row) for row in session.execute(query)]


def costs(context: Context, document_id: str) -> list[CostView]:
    """What a document cost, by provider and model, the dearest first; attempts that retention removed are not in it."""
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
    """How many pages are in which state. Those that are settled are counted on their documents: they are too many."""
    totals = (func.sum(DOCUMENTS.c.completed_count), func.sum(DOCUMENTS.c.failed_count))
    completed, failed = session.execute(select(*totals)).one()
    retrying = func.count().filter(PAGES.c.status == PageStatus.RETRYING)
    claimable = select(func.count(), retrying).where(in_states(PAGES, PAGE.sources(PageEvent.CLAIM)))
    waiting, again = session.execute(claimable).one()
    held = session.execute(select(func.count()).select_from(PAGES).where(PAGES.c.claim_id.is_not(None))).scalar_one()
    found = {
        PageStatus.PENDING: waiting - again,
        PageStatus.RETRYING: again,
        PageStatus.PROCESSING: held,
        PageStatus.COMPLETED: completed,
        PageStatus.FAILED: failed,
    }
    return {int(state): int(count) for state, count in found.items() if count}


def load_beside(context: Context, ids: Collection[str], provider: str) -> Load:
    """What is under way beside these documents at the same provider."""
    left = DOCUMENTS.c.pages - DOCUMENTS.c.completed_count - DOCUMENTS.c.failed_count
    query = select(DOCUMENTS.c.id, left.label("pages")).where(
        in_states(DOCUMENTS, OPEN), DOCUMENTS.c.provider == provider
    )
    with context.db.read() as session:
        others = [row.pages for row in session.execute(query) if row.id not in ids]
    return Load(len(others), sum(others))


def figures(context: Context) -> Figures:
    """Documents and pages by state, and the last hour's throughput. Rule: docs/sources/documents.md#monitoring."""
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
    """Those of these documents that calls may still be made for: a paused one while pages are under way."""
    claimed = select(PAGES.c.id).where(PAGES.c.document_id == DOCUMENTS.c.id, PAGES.c.claim_id.is_not(None)).exists()
    rests = or_(DOCUMENTS.c.status.in_(AT_REST), and_(DOCUMENTS.c.status == DocumentStatus.PAUSED, ~claimed))
    works = and_(DOCUMENTS.c.id.in_(document_ids), ~rests)
    return set(session.execute(select(DOCUMENTS.c.id).where(works)).scalars())

"""The reasons of documents' states, in words: why they wait, which key paused them, why they failed."""

from collections.abc import Collection

from redis import RedisError
from sqlalchemy import and_, func, select

from pipeline.engine.presence import NoWorker, Presence
from pipeline.flows.documents import plan
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import OPEN, DocumentStatus, PageStatus
from pipeline.flows.documents.views import DocumentView, Kind, Reason
from pipeline.flows.documents.work.page import CONVERT
from pipeline.providers import queue_views
from pipeline.storage.context import Context

_D = DocumentStatus


def reasons(context: Context, documents: Collection[DocumentView]) -> dict[str, Reason]:
    """Return, by document id and in words, why a document waits, what workers do with it, or why it is paused, failed
    or doubtful; leave out the others.

    Meant for the documents of one screen.
    """
    by_id = {document.id: reason for document in documents if (reason := _of_row(document))}
    by_id |= _failures(context, [document for document in documents if document.status is _D.PARTIAL_FAILED])
    open_ = [document for document in documents if document.status in OPEN]
    return by_id | (_waits(context, open_) if open_ else {})


def _of_row(document: DocumentView) -> Reason | None:
    """Return the reason that the document's own row states."""
    match document.status:
        case _D.SPLITTING:
            return Reason(Kind.WORKING, "being split into pages")
        case _D.MERGING:
            return Reason(Kind.WORKING, "its pages are being merged")
        case _D.PAUSED:
            return Reason(Kind.PAUSED, f"by {document.paused_by}" if document.paused_by else "", document.paused_at)
        case _D.FAILED:
            return Reason(Kind.FAILED, document.error or "")
        case _D.COMPLETED if document.doubtful_count:
            return Reason(Kind.DOUBT, f"{_pages(document.doubtful_count)} to compare: recognition was not sure")
    return None


def _pages(count: int) -> str:
    return f"{count:,} page" + ("s" if count != 1 else "")


def _failures(context: Context, documents: Collection[DocumentView]) -> dict[str, Reason]:
    """Return, by document id, a reason that names the first failed page with its error, and the number of the
    others."""
    if not documents:
        return {}
    failed = (PAGES.c.document_id.in_([document.id for document in documents]), PAGES.c.status == PageStatus.FAILED)
    first = (
        select(PAGES.c.document_id, func.min(PAGES.c.page).label("page")).where(*failed).group_by(PAGES.c.document_id)
    )
    each = first.subquery()
    query = select(PAGES.c.document_id, PAGES.c.page, PAGES.c.error).join(
        each, and_(PAGES.c.document_id == each.c.document_id, PAGES.c.page == each.c.page)
    )
    with context.db.read() as session:
        rows = {row.document_id: row for row in session.execute(query)}
    by_id = {}
    for document in documents:
        row = rows.get(document.id)
        others = f" and {document.failed_count - 1:,} more" if document.failed_count > 1 else ""
        words = f"page {row.page}{others}: {row.error}" if row else document.error or ""
        by_id[document.id] = Reason(Kind.FAILED, words)
    return by_id


def _waits(context: Context, documents: Collection[DocumentView]) -> dict[str, Reason]:
    """Return the reason why each of these open documents waits, or how many of its pages are under way, by id."""
    ids = [document.id for document in documents]
    held = _under_way(context, ids)
    due = {stage.document_id: stage for stage in plan.stages(context, [key for key in ids if key not in held])}
    later = retries(context, [key for key in ids if key not in held and key not in due])
    no_worker = _no_worker(context)
    queues: dict[str, Reason | None] = {}
    by_id = {}
    for document in documents:
        key = document.id
        if key in held:
            by_id[key] = Reason(Kind.WORKING, f"{_pages(held[key])} under way")
        elif no_worker:
            by_id[key] = no_worker
        elif key in later:
            by_id[key] = later[key]
        else:
            lanes = list(due[key].lanes) if key in due else []
            for queue in lanes:
                if queue not in queues:
                    queues[queue] = _closed(context, queue) or _unserved(context, queue)
            why = next((reason for queue in lanes if (reason := queues[queue])), None)
            by_id[key] = why or Reason(Kind.CAPACITY, f"for a free worker, {_next_stage(document)}")
    return by_id


def _next_stage(document: DocumentView) -> str:
    steps = {_D.PENDING: "to be split into pages", _D.READY_TO_MERGE: "to be merged"}
    return steps.get(document.status, "to convert its pages")


def _under_way(context: Context, ids: Collection[str]) -> dict[str, int]:
    """Return how many pages workers hold, by document; leave out documents without such pages."""
    query = (
        select(PAGES.c.document_id, func.count())
        .where(PAGES.c.document_id.in_(ids), CONVERT.working)
        .group_by(PAGES.c.document_id)
    )
    with context.db.read() as session:
        return dict(session.execute(query).all())


def retries(context: Context, ids: Collection[str]) -> dict[str, Reason]:
    """Return, by document id, the error before a retry and the time of the retry; leave out documents that do not
    wait."""
    if not ids:
        return {}
    now = context.db.now()
    waits = CONVERT.waits(PAGES.c.next_run_at > now)
    query = (
        select(
            PAGES.c.document_id,
            func.count().label("pages"),
            func.min(PAGES.c.next_run_at).label("at"),
            func.max(PAGES.c.error).label("error"),
        )
        .where(waits, PAGES.c.document_id.in_(ids))
        .group_by(PAGES.c.document_id)
    )
    stages = select(DOCUMENTS.c.id, DOCUMENTS.c.next_run_at).where(
        DOCUMENTS.c.id.in_(ids), DOCUMENTS.c.next_run_at > now
    )
    with context.db.read() as session:
        by_id = {row.id: Reason(Kind.RETRY, "tried again", row.next_run_at) for row in session.execute(stages)}
        for row in session.execute(query):
            why = f": {row.error}" if row.error else ""
            by_id[row.document_id] = Reason(Kind.RETRY, f"{_pages(row.pages)} tried again{why}", row.at)
    return by_id


def _no_worker(context: Context) -> Reason | None:
    """Return why no worker can take work, also if Redis is down; None if a worker is alive."""
    if not context.online:
        return Reason(Kind.WORKERS, "Redis is down, so no message reaches a worker: `penstock up` starts it")
    try:
        return None if Presence(context.redis).alive() else Reason(Kind.WORKERS, str(NoWorker()))
    except RedisError:
        return Reason(Kind.WORKERS, "Redis cannot be reached, so no message reaches a worker")


def _unserved(context: Context, queue: str) -> Reason | None:
    """Return the reason that no running worker consumes the queue; None if one does, or Redis does not answer."""
    try:
        served = Presence(context.redis).served()
    except RedisError:
        return None
    if served is None or queue in served:
        return None
    return Reason(Kind.WORKERS, queue_views.unserved(context, queue))


def _closed(context: Context, queue: str) -> Reason | None:
    """Return why the queue's gate is closed; None if it is open, or Redis does not answer."""
    if queue not in context.gates.queues:
        return None
    try:
        holdup = queue_views.holdup(queue_views.queue(context, queue), context.db.now())
    except RedisError:
        return None
    return Reason(Kind(holdup.kind), holdup.words, holdup.until) if holdup else None

"""Why documents are as they are, in words: what they wait for, who paused them, what went wrong with them."""

from collections.abc import Collection

from redis import RedisError
from sqlalchemy import and_, func, select

from pipeline.engine.presence import NoWorker, Presence
from pipeline.flows.documents import plan
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.views import DocumentView, Kind, Reason
from pipeline.flows.documents.work.page import CONVERT
from pipeline.providers import queue_views
from pipeline.storage.context import Context

_D = DocumentStatus


def reasons(context: Context, documents: Collection[DocumentView]) -> dict[str, Reason]:
    """The reason of each document that has one, by its id. For as many as are on a screen."""
    found = {one.id: reason for one in documents if (reason := _of_row(one))}
    found |= _failures(context, [one for one in documents if one.status is _D.PARTIAL_FAILED])
    open_ = [one for one in documents if one.status in {_D.PENDING, _D.PROCESSING, _D.READY_TO_MERGE}]
    return found | (_waits(context, open_) if open_ else {})


def _of_row(document: DocumentView) -> Reason | None:
    """What the document's own row tells."""
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
    """The first page that failed, and what with."""
    if not documents:
        return {}
    failed = (PAGES.c.document_id.in_([one.id for one in documents]), PAGES.c.status == PageStatus.FAILED)
    first = (
        select(PAGES.c.document_id, func.min(PAGES.c.page).label("page")).where(*failed).group_by(PAGES.c.document_id)
    )
    each = first.subquery()
    query = select(PAGES.c.document_id, PAGES.c.page, PAGES.c.error).join(
        each, and_(PAGES.c.document_id == each.c.document_id, PAGES.c.page == each.c.page)
    )
    with context.db.read() as session:
        rows = {row.document_id: row for row in session.execute(query)}
    found = {}
    for one in documents:
        others = f" and {one.failed_count - 1:,} more" if one.failed_count > 1 else ""
        words = f"page {rows[one.id].page}{others}: {rows[one.id].error}" if one.id in rows else one.error or ""
        found[one.id] = Reason(Kind.FAILED, words)
    return found


def _waits(context: Context, documents: Collection[DocumentView]) -> dict[str, Reason]:
    """What documents wait for that have something to do."""
    ids = [one.id for one in documents]
    held = _under_way(context, ids)
    due = {one.document_id: one for one in plan.stages(context, [one for one in ids if one not in held])}
    later = retries(context, [one for one in ids if one not in held and one not in due])
    nobody = _nobody(context)
    queues: dict[str, Reason | None] = {}
    found = {}
    for document in documents:
        key = document.id
        if key in held:
            found[key] = Reason(Kind.WORKING, f"{_pages(held[key])} under way")
        elif nobody:
            found[key] = nobody
        elif key in later:
            found[key] = later[key]
        else:
            named = list(due[key].lanes) if key in due else []
            for queue in named:
                if queue not in queues:
                    queues[queue] = _closed(context, queue) or _unserved(context, queue)
            why = next((reason for queue in named if (reason := queues[queue])), None)
            found[key] = why or Reason(Kind.CAPACITY, f"for a free worker, {_what_for(document)}")
    return found


def _what_for(document: DocumentView) -> str:
    steps = {_D.PENDING: "to be split into pages", _D.READY_TO_MERGE: "to be merged"}
    return steps.get(document.status, "to convert its pages")


def _under_way(context: Context, ids: Collection[str]) -> dict[str, int]:
    """How many pages of these documents workers hold now."""
    query = (
        select(PAGES.c.document_id, func.count())
        .where(PAGES.c.document_id.in_(ids), CONVERT.working)
        .group_by(PAGES.c.document_id)
    )
    with context.db.read() as session:
        return dict(session.execute(query).all())


def retries(context: Context, ids: Collection[str]) -> dict[str, Reason]:
    """Why documents wait for a retry, and until when; documents that do not wait are left out."""
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
        found = {row.id: Reason(Kind.RETRY, "tried again", row.next_run_at) for row in session.execute(stages)}
        for row in session.execute(query):
            why = f": {row.error}" if row.error else ""
            found[row.document_id] = Reason(Kind.RETRY, f"{_pages(row.pages)} tried again{why}", row.at)
    return found


def _nobody(context: Context) -> Reason | None:
    """Why nobody works at all."""
    if not context.online:
        return Reason(Kind.WORKERS, "Redis is down, so that nobody can be told of work: `penstock up` starts it")
    try:
        return None if Presence(context.redis).alive() else Reason(Kind.WORKERS, str(NoWorker()))
    except RedisError:
        return Reason(Kind.WORKERS, "Redis cannot be reached, so that nobody can be told of work")


def _unserved(context: Context, queue: str) -> Reason | None:
    """Report a queue that no running worker consumes; None if one does, or if one does not name its queues."""
    try:
        served = Presence(context.redis).served()
    except RedisError:
        return None
    if served is None or queue in served:
        return None
    return Reason(Kind.WORKERS, queue_views.unserved(context, queue))


def _closed(context: Context, queue: str) -> Reason | None:
    """Why nothing of a queue gets through now; None if something does, or Redis cannot say."""
    if queue not in context.gates.queues:
        return None
    try:
        found = queue_views.holdup(queue_views.queue(context, queue), context.db.now())
    except RedisError:
        return None
    return Reason(Kind(found.kind), found.words, found.until) if found else None

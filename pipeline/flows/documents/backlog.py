"""Documents and pages that wait, those that failed last, and how many are done a minute."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import and_, func, select

from pipeline.engine.backlog import Failure, Waiting
from pipeline.engine.backlog import waiting as counted
from pipeline.engine.claims import in_states
from pipeline.engine.metrics import Minute, Throughput, by_minute, throughput
from pipeline.flows.documents import plan, queries
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, PAGES
from pipeline.flows.documents.states import OPEN, DocumentStatus
from pipeline.flows.documents.work.document import MERGE, SPLIT
from pipeline.flows.documents.work.page import CONVERT
from pipeline.storage.context import Context

MINUTES = 60
STILL_COMING = timedelta(minutes=2)
"""An attempt has the time of its transaction's beginning: it may be seen this much later."""
_FAILED = (DocumentStatus.FAILED, DocumentStatus.PARTIAL_FAILED)


def waiting(context: Context) -> Iterator[Waiting]:
    """Documents that wait to be split or merged, and pages by who converts them now."""
    left = func.sum(DOCUMENTS.c.pages - DOCUMENTS.c.completed_count - DOCUMENTS.c.failed_count)
    converted = and_(PAGES.c.document_id == DOCUMENTS.c.id, DOCUMENTS.c.status == DocumentStatus.PROCESSING)
    with context.db.read() as session:
        whole = [one for kind in (SPLIT, MERGE) for _, one in counted(session, kind, "documents")]
        pages = list(counted(session, CONVERT, "pages", by=PAGES.c.provider, within=PAGES.join(DOCUMENTS, converted)))
        paused, unsplit = session.execute(
            select(left, func.count().filter(DOCUMENTS.c.pages == 0)).where(DOCUMENTS.c.status == DocumentStatus.PAUSED)
        ).one()
    yield from (replace(one, queue=plan.CPU) for one in whole)
    for provider, one in pages:
        yield replace(one, queue=plan.queue_of(plan.converter_of(context, provider)))
    for kind, count in (("pages", paused), ("documents", unsplit)):
        if count:
            yield Waiting(kind, int(count), why="their documents are paused", is_paused=True)


def failures(context: Context, limit: int) -> list[Failure]:
    """The newest documents that failed, or that lack pages that failed."""
    c = DOCUMENTS.c
    with context.db.read() as session:
        rows = [
            row
            for status in _FAILED  # each from its end of the index
            for row in session.execute(
                select(DOCUMENTS).where(c.status == status).order_by(c.created_at.desc(), c.id.desc()).limit(limit)
            )
        ]
        lacking = select(DOCUMENTS).where(in_states(DOCUMENTS, OPEN), c.failed_count > 0)
        rows += session.execute(lacking.order_by(c.created_at.desc(), c.id.desc()).limit(limit)).all()
    newest = sorted(rows, key=lambda row: row.updated_at, reverse=True)[:limit]
    return [
        Failure("documents", "document", row.id, row.filename, _words(context, row), row.updated_at) for row in newest
    ]


def _words(context: Context, row: object) -> str:
    view = queries.document_view(context, row)
    if view.status is DocumentStatus.FAILED or not view.failed_count:
        return view.error or "it failed"
    with context.db.read() as session:
        why = queries.commonest_error(session, view.id)
    return f"{view.failed_count} of {view.pages} pages failed: {why or view.error or 'for no reason on record'}"


def pages_by_minute(context: Context) -> list[Minute]:
    """Attempts in each minute of the last hour, the oldest first; the one that goes on is the last.

    Minutes that are over are read once in a process.
    """
    now = context.db.now()
    this = now.replace(second=0, microsecond=0)
    known: dict[datetime, Minute] = context.cache.get("documents.pages_by_minute", {})
    minutes = [this - timedelta(minutes=ago) for ago in range(MINUTES - 1, -1, -1)]
    since = next(minute for minute in minutes if minute not in known or minute > this - STILL_COMING)
    with context.db.read() as session:
        fresh = {one.begins: one for one in by_minute(session, ATTEMPTS, since)}
    found = {
        minute: fresh.get(minute, Minute(minute, 0, 0)) if minute >= since else known[minute] for minute in minutes
    }
    context.cache["documents.pages_by_minute"] = found  # anew: another thread may read the one before
    return list(found.values())


def last_hour(context: Context) -> Throughput:
    """Figures of the last hour's attempts."""
    now = context.db.now()
    with context.db.read() as session:
        return throughput(session, ATTEMPTS, now - timedelta(hours=1), now)

"""The flow's backlog: waiting documents and pages, the latest failures, and the attempts of each minute."""

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
"""How long a minute's count may still grow: an attempt bears the time at which its transaction began."""
_FAILED = (DocumentStatus.FAILED, DocumentStatus.PARTIAL_FAILED)


def waiting(context: Context) -> Iterator[Waiting]:
    """Yield counts: documents that wait for splitting or merging, waiting pages by the queue that converts them, and
    the documents and pages that wait because they are paused.
    """
    unfinished = func.sum(DOCUMENTS.c.pages - DOCUMENTS.c.completed_count - DOCUMENTS.c.failed_count)
    converted = and_(PAGES.c.document_id == DOCUMENTS.c.id, DOCUMENTS.c.status == DocumentStatus.PROCESSING)
    with context.db.read() as session:
        stages = [wait for kind in (SPLIT, MERGE) for _, wait in counted(session, kind, "documents")]
        pages = list(counted(session, CONVERT, "pages", by=PAGES.c.provider, within=PAGES.join(DOCUMENTS, converted)))
        paused, unsplit = session.execute(
            select(unfinished, func.count().filter(DOCUMENTS.c.pages == 0)).where(
                DOCUMENTS.c.status == DocumentStatus.PAUSED
            )
        ).one()
    yield from (replace(wait, queue=plan.CPU) for wait in stages)
    for provider, wait in pages:
        yield replace(wait, queue=plan.queue_of(plan.converter_of(context, provider)))
    for kind, count in (("pages", paused), ("documents", unsplit)):
        if count:
            yield Waiting(kind, int(count), why="their documents are paused", is_paused=True)


def failures(context: Context, limit: int) -> list[Failure]:
    """Return at most `limit` documents that failed or have failed pages, the last changed first.

    They are chosen among the `limit` newest FAILED, PARTIAL_FAILED and open ones by time of creation, so an old
    document that fails now may be missing.
    """
    c = DOCUMENTS.c
    with context.db.read() as session:
        rows = [
            row
            for status in _FAILED  # one query for each state reads only the end of the index
            for row in session.execute(
                select(DOCUMENTS).where(c.status == status).order_by(c.created_at.desc(), c.id.desc()).limit(limit)
            )
        ]
        lacking = select(DOCUMENTS).where(in_states(DOCUMENTS, OPEN), c.failed_count > 0)
        rows += session.execute(lacking.order_by(c.created_at.desc(), c.id.desc()).limit(limit)).all()
    newest = sorted(rows, key=lambda row: row.updated_at, reverse=True)[:limit]
    return [
        Failure("documents", "document", row.id, row.filename, _reason(context, row), row.updated_at) for row in newest
    ]


def _reason(context: Context, row: object) -> str:
    view = queries.document_view(context, row)
    if view.status is DocumentStatus.FAILED or not view.failed_count:
        return view.error or "it failed"
    with context.db.read() as session:
        why = queries.commonest_error(session, view.id)
    return f"{view.failed_count} of {view.pages} pages failed: {why or view.error or 'for no reason on record'}"


def pages_by_minute(context: Context) -> list[Minute]:
    """Return, for each of the last 60 minutes, how many attempts at pages ended and how many of these failed, oldest
    first. Minutes without attempts have zeros; the last minute is still running.

    A process keeps the counts of finished minutes in its cache.
    """
    now = context.db.now()
    this = now.replace(second=0, microsecond=0)
    known: dict[datetime, Minute] = context.cache.get("documents.pages_by_minute", {})
    minutes = [this - timedelta(minutes=ago) for ago in range(MINUTES - 1, -1, -1)]
    since = next(minute for minute in minutes if minute not in known or minute > this - STILL_COMING)
    with context.db.read() as session:
        fresh = {minute.begins: minute for minute in by_minute(session, ATTEMPTS, since)}
    counts = {
        minute: fresh.get(minute, Minute(minute, 0, 0)) if minute >= since else known[minute] for minute in minutes
    }
    context.cache["documents.pages_by_minute"] = counts  # a new dict: another thread may be reading the old one
    return list(counts.values())


def last_hour(context: Context) -> Throughput:
    """Return the numbers, rate and mean time of the attempts at pages in the last hour."""
    now = context.db.now()
    with context.db.read() as session:
        return throughput(session, ATTEMPTS, now - timedelta(hours=1), now)

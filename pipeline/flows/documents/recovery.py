"""What the sweeper does for documents: lost claims go back, and what nothing moves is launched. Source 001, 4.5."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE, is_due, lost
from pipeline.engine.metrics import queue_depths
from pipeline.engine.relaunch import RELAUNCH_AFTER_S
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.plan import Lanes, lane_leases, lanes
from pipeline.flows.documents.routes import CPU
from pipeline.flows.documents.states import PAGE, DocumentStatus, PageEvent, PageStatus
from pipeline.flows.documents.work import page
from pipeline.flows.documents.work import stage as claiming
from pipeline.flows.documents.work.page_lane import policy
from pipeline.providers import gates
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
MAX_PER_SWEEP = 500


def free_lost(context: Context, absent: set[str]) -> set[str]:
    """Give back what is held by absent workers or beyond its lease; the documents concerned."""
    now = datetime.now(UTC)
    stages = context.db.run(lambda session: claiming.give_back(session, now, lost(DOCUMENTS, now, absent)))
    with context.db.read() as session:
        query = select(PAGES.c.document_id).distinct().where(lost(PAGES, now, absent))
        ids = list(session.execute(query).scalars())
    for document_id in ids:
        _free_pages(context, document_id, absent)
    return {*stages, *ids}


def _free_pages(context: Context, document_id: str, absent: set[str]) -> None:
    def work(session: Session) -> list[str]:
        document = page.lock(session, document_id)
        if document is None:
            return []
        now = datetime.now(UTC)
        reason = "the worker was lost while it converted this page"
        return page.free_lost(session, document, lost(PAGES, now, absent), reason, policy(context), now)

    requests = context.db.run(work)
    # A request is `lane:hop`: the lane of a dead worker must not count as live.
    holders = [request.rpartition(":")[0] for request in requests]
    for queue in (CPU, *gates.gated_queues(context.settings)):
        lane_leases(context, document_id, queue).release(*holders)
    log.warning("pages.given_back", document=document_id, deliveries=len(requests))


def release_worker(context: Context, worker_ids: Iterable[str]) -> None:
    """Give back everything that workers which are ending still hold; no attempt is counted."""
    ids = list(worker_ids)
    held = PAGES.c.worker_id.in_(ids)

    def work(session: Session) -> None:
        now = datetime.now(UTC)
        claiming.give_back(session, now, DOCUMENTS.c.worker_id.in_(ids), counts=False)
        # Documents first, in one order, as everywhere: no two transactions wait for each other.
        mine = select(PAGES.c.document_id).distinct().where(held, PAGES.c.claim_id.is_not(None))
        session.execute(
            select(DOCUMENTS.c.id).where(DOCUMENTS.c.id.in_(mine)).order_by(DOCUMENTS.c.id).with_for_update()
        )
        back = {**FREE, "attempts": PAGES.c.attempts - 1, "updated_at": now}
        PAGE.move(session, PAGES, PageEvent.GIVE_BACK, held, PAGES.c.claim_id.is_not(None), **back)

    context.db.run(work, patience_s=5)


def unmoved(context: Context) -> list[str]:
    """Documents that wait for a launch: never launched, or nothing has moved them for a while."""
    now = datetime.now(UTC)
    due = or_(DOCUMENTS.c.launch_due_at.is_(None), DOCUMENTS.c.launch_due_at <= now)
    stage = DOCUMENTS.c.status.in_([DocumentStatus.PENDING, DocumentStatus.READY_TO_MERGE])
    pages = (
        select(PAGES.c.id)
        .where(
            PAGES.c.document_id == DOCUMENTS.c.id,
            PAGES.c.status.in_(list(PAGE.sources(PageEvent.CLAIM))),
            is_due(PAGES, now),
        )
        .exists()
    )
    processing = and_(DOCUMENTS.c.status == DocumentStatus.PROCESSING, pages)
    query = (
        select(DOCUMENTS.c.id, DOCUMENTS.c.status)
        .where(due, or_(stage, processing))
        .order_by(DOCUMENTS.c.updated_at)
        .limit(MAX_PER_SWEEP)
    )
    with context.db.read() as session:
        rows = session.execute(query).all()
    return [row.id for row in rows if row.status != DocumentStatus.PROCESSING or _lacks_lanes(context, row.id)]


def _lacks_lanes(context: Context, document_id: str) -> bool:
    """Whether a document with pages to claim has fewer live lanes than it could use."""
    claimed = select(func.count()).where(PAGES.c.document_id == document_id, PAGES.c.status == PageStatus.PROCESSING)
    with context.db.read() as session:
        working = session.execute(claimed).scalar_one()
    lacking = False
    for lane in lanes(context, document_id):
        if _waits_before_its_gate(context, lane):
            continue
        leases = lane_leases(context, document_id, lane.queue)
        if not working:
            # Leases, but nobody works: their lanes died between two pages, or wait behind others. Those that
            # live take their leases again, or find them taken and end.
            leases.clear()
        lacking |= not working or len(leases.holders()) < lane.wanted
    if not lacking:
        _look_again_later(context, document_id)
    return lacking


def _waits_before_its_gate(context: Context, lane: Lanes) -> bool:
    """Whether a gate holds the messages of a queue: more of them would only pile up there.

    If those that wait are other documents', this one's turn comes when they have gone.
    """
    queue = gates.gated_queues(context.settings).get(lane.queue)
    if queue is None:
        return False
    closed = gates.gate(context, queue).look().closed_by
    return bool(closed) or queue_depths(context.redis, [lane.queue])[lane.queue] >= lane.wanted


def _look_again_later(context: Context, document_id: str) -> None:
    later = datetime.now(UTC) + timedelta(seconds=RELAUNCH_AFTER_S)
    statement = update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(launch_due_at=later)
    context.db.run(lambda session: session.execute(statement))


def due_pages(context: Context) -> list[str]:
    """Documents with pages whose wait is over: what a wake-up launches."""
    now = datetime.now(UTC)
    query = (
        select(PAGES.c.document_id)
        .distinct()
        .join(DOCUMENTS, DOCUMENTS.c.id == PAGES.c.document_id)
        .where(
            DOCUMENTS.c.status == DocumentStatus.PROCESSING,
            PAGES.c.status.in_(list(PAGE.sources(PageEvent.CLAIM))),
            PAGES.c.next_run_at <= now,
        )
        .limit(MAX_PER_SWEEP)
    )
    with context.db.read() as session:
        return list(session.execute(query).scalars())


def next_wait_s(context: Context) -> float | None:
    """Seconds until the next page is due, if one waits."""
    now = datetime.now(UTC)
    query = (
        select(func.min(PAGES.c.next_run_at))
        .join(DOCUMENTS, DOCUMENTS.c.id == PAGES.c.document_id)
        .where(DOCUMENTS.c.status == DocumentStatus.PROCESSING, PAGES.c.next_run_at > now)
    )
    with context.db.read() as session:
        due = session.execute(query).scalar()
    return (due - now).total_seconds() if due else None

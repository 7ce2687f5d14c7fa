"""Releasing what lost workers hold: the sweeper's part, and that of a worker that ends. Source 001, 4.5."""

from collections.abc import Iterable
from datetime import UTC, datetime

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from pipeline.engine.claims import lost
from pipeline.flows.documents import plan
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.work import document as stage
from pipeline.flows.documents.work import page
from pipeline.providers import gates
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)


def release_lost(context: Context, absent: set[str]) -> set[str]:
    """Release what absent workers hold, or whoever is beyond the lease; the documents concerned."""
    now = datetime.now(UTC)
    documents = context.db.run(lambda session: stage.release(session, now, lost(DOCUMENTS, now, absent)))
    with context.db.read() as session:
        query = select(PAGES.c.document_id).distinct().where(lost(PAGES, now, absent))
        ids = list(session.execute(query).scalars())
    for document_id in ids:
        _release_pages(context, document_id, absent)
    return {*documents, *ids}


def _release_pages(context: Context, document_id: str, absent: set[str]) -> None:
    def work(session: Session) -> list[str]:
        document = page.lock(session, document_id)
        if document is None:
            return []
        now = datetime.now(UTC)
        policy = page.policy(context.settings)
        return page.release_lost(session, document, lost(PAGES, now, absent), page.WORKER_LOST, policy, now)

    requests = context.db.run(work)
    # A lane's request is `lane:message`. The lane of a dead worker must not count as live.
    holders = [request.rpartition(":")[0] for request in requests]
    for queue in (plan.CPU, *gates.gated_queues(context.settings)):
        plan.lane_leases(context, document_id, queue).release(*holders)
    log.warning("pages.given_back", document=document_id, deliveries=len(requests))


def release_workers(context: Context, worker_ids: Iterable[str]) -> None:
    """Release everything that these workers, which are ending, still hold; no attempt counts."""
    ids = list(worker_ids)

    def work(session: Session) -> None:
        now = datetime.now(UTC)
        stage.release(session, now, DOCUMENTS.c.worker_id.in_(ids), counts=False)
        # Documents first, always in the same order: no two transactions wait for each other.
        held = PAGES.c.worker_id.in_(ids)
        mine = select(PAGES.c.document_id).distinct().where(held, PAGES.c.claim_id.is_not(None))
        session.execute(
            select(DOCUMENTS.c.id).where(DOCUMENTS.c.id.in_(mine)).order_by(DOCUMENTS.c.id).with_for_update()
        )
        page.release(session, now, held)

    context.db.run(work, patience_s=5)

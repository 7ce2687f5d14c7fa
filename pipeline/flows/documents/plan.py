"""What is due, derived from the rows: a document's next stage, its lanes, and the queues they go to.

Submit, retry, resume and recovery all end here.
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import is_due
from pipeline.engine.leases import Leases
from pipeline.engine.metrics import queue_depths
from pipeline.engine.relaunch import RELAUNCH_AFTER_S, wait_s
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import PAGE, DocumentStatus, PageEvent, PageStatus
from pipeline.providers import fallbacks, gates
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

CPU = "cpu"
"""The queue for work that needs a core: prefork workers."""
MAX_PER_SWEEP = 500


class Stage(StrEnum):
    """Where a document's canvas begins."""

    SPLIT = "split"
    CONVERT = "convert"
    MERGE = "merge"


_STAGES = {
    DocumentStatus.PENDING: Stage.SPLIT,
    DocumentStatus.PROCESSING: Stage.CONVERT,
    DocumentStatus.READY_TO_MERGE: Stage.MERGE,
}


def next_stage(context: Context, document_id: str) -> Stage | None:
    """The stage to launch now, or None if the document waits for none. Notes the launch on the row.

    The note spaces out further launches by the sweeper: a message may wait long in a busy queue.
    """

    def work(session: Session) -> Stage | None:
        query = select(DOCUMENTS.c.status, DOCUMENTS.c.launches).where(DOCUMENTS.c.id == document_id).with_for_update()
        row = session.execute(query).one_or_none()
        stage = _STAGES.get(DocumentStatus(row.status)) if row else None
        if row is None or stage is None:
            return None
        due = datetime.now(UTC) + timedelta(seconds=wait_s(row.launches))
        session.execute(
            update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(launches=row.launches + 1, launch_due_at=due)
        )
        return stage

    return context.db.run(work)


def queue_of(provider: str) -> str:
    """`cpu`, or the provider's own queue, which has a gate."""
    return CPU if provider == LOCAL else gates.queue_name("vision", provider)


def provider_of(queue: str) -> str:
    """The provider that lanes of this queue ask."""
    return LOCAL if queue == CPU else queue.partition(".")[2]


def served_by(context: Context, queue: str) -> list[str]:
    """The providers whose pages lanes of this queue take now: its own first, then those it stands in for."""
    own = provider_of(queue)
    return [own, *(name for name in sorted(context.settings.providers) if name != own and _asked(context, name) == own)]


def _asked(context: Context, provider: str) -> str:
    """Who converts pages of `provider` now: its fallback, while its breaker is open and the fallback's is not."""
    return fallbacks.stand_in(context, provider, "vision", local=True)


def quantum_s(settings: Settings, queue: str) -> float:
    """How long a lane works before it yields. 0 on queues that may be rate-limited: one page a message."""
    return settings.documents.quantum_s if queue == CPU else 0.0


def lane_limit(settings: Settings, queue: str) -> int:
    """How many lanes a document may have on this queue."""
    profile = settings.providers.get(provider_of(queue))
    return profile.concurrency if profile else settings.documents.converter_count


def lane_leases(context: Context, document_id: str, queue: str, limit: int = 1_000_000) -> Leases:
    """The leases of a document's live lanes on a queue."""
    return Leases(context.redis, f"lanes:{document_id}:{queue}", limit)


def lanes(context: Context, document_id: str) -> dict[str, int]:
    """How many lanes the document needs now on each queue; none unless it is PROCESSING."""
    mine = and_(DOCUMENTS.c.id == document_id, DOCUMENTS.c.status == DocumentStatus.PROCESSING)
    query = (
        select(PAGES.c.provider, func.count())
        .join(DOCUMENTS, DOCUMENTS.c.id == PAGES.c.document_id)
        .where(mine, _claimable(datetime.now(UTC)))
        .group_by(PAGES.c.provider)
    )
    with context.db.read() as session:
        counts = session.execute(query).all()
    wanted: dict[str, int] = {}
    for provider, pages in counts:
        queue = queue_of(_asked(context, provider))
        wanted[queue] = min(wanted.get(queue, 0) + pages, lane_limit(context.settings, queue))
    return wanted


def _claimable(now: datetime) -> ColumnElement[bool]:
    return and_(PAGES.c.status.in_(list(PAGE.sources(PageEvent.CLAIM))), is_due(PAGES, now))


def due(context: Context) -> list[str]:
    """Documents with pages whose wait is over: what a wake-up launches."""
    query = (
        select(PAGES.c.document_id)
        .distinct()
        .join(DOCUMENTS, DOCUMENTS.c.id == PAGES.c.document_id)
        .where(
            DOCUMENTS.c.status == DocumentStatus.PROCESSING,
            PAGES.c.status.in_(list(PAGE.sources(PageEvent.CLAIM))),
            PAGES.c.next_run_at <= datetime.now(UTC),
        )
        .limit(MAX_PER_SWEEP)
    )
    with context.db.read() as session:
        return list(session.execute(query).scalars())


def next_wait_s(context: Context) -> float | None:
    """Seconds until the next page is due; None if no page waits."""
    now = datetime.now(UTC)
    query = (
        select(func.min(PAGES.c.next_run_at))
        .join(DOCUMENTS, DOCUMENTS.c.id == PAGES.c.document_id)
        .where(DOCUMENTS.c.status == DocumentStatus.PROCESSING, PAGES.c.next_run_at > now)
    )
    with context.db.read() as session:
        first = session.execute(query).scalar()
    return (first - now).total_seconds() if first else None


def unmoved(context: Context) -> list[str]:
    """Documents that wait for a launch: never launched, or nothing has moved them for a while."""
    now = datetime.now(UTC)
    overdue = or_(DOCUMENTS.c.launch_due_at.is_(None), DOCUMENTS.c.launch_due_at <= now)
    stage = DOCUMENTS.c.status.in_([DocumentStatus.PENDING, DocumentStatus.READY_TO_MERGE])
    pages = select(PAGES.c.id).where(PAGES.c.document_id == DOCUMENTS.c.id, _claimable(now)).exists()
    processing = and_(DOCUMENTS.c.status == DocumentStatus.PROCESSING, pages)
    query = (
        select(DOCUMENTS.c.id, DOCUMENTS.c.status)
        .where(overdue, or_(stage, processing))
        .order_by(DOCUMENTS.c.updated_at)
        .limit(MAX_PER_SWEEP)
    )
    with context.db.read() as session:
        rows = session.execute(query).all()
    return [row.id for row in rows if row.status != DocumentStatus.PROCESSING or _lacks_lanes(context, row.id)]


def _lacks_lanes(context: Context, document_id: str) -> bool:
    """Whether a document with claimable pages has fewer live lanes than it needs. If not, ask again later."""
    claimed = select(func.count()).where(PAGES.c.document_id == document_id, PAGES.c.status == PageStatus.PROCESSING)
    with context.db.read() as session:
        working = session.execute(claimed).scalar_one()
    lacking = False
    for queue, wanted in lanes(context, document_id).items():
        if _waits_at_gate(context, queue, wanted):
            continue
        leases = lane_leases(context, document_id, queue)
        if not working:
            # Leases without a claimed page: their lanes died between two pages, or wait behind other documents.
            # Those that live take their leases again, or find them taken and end.
            leases.clear()
        lacking |= not working or len(leases.holders()) < wanted
    if not lacking:
        later = datetime.now(UTC) + timedelta(seconds=RELAUNCH_AFTER_S)
        statement = update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(launch_due_at=later)
        context.db.run(lambda session: session.execute(statement))
    return lacking


def _waits_at_gate(context: Context, queue: str, wanted: int) -> bool:
    """Whether a gate holds the queue's messages, so that more of them would only pile up.

    They may be other documents' messages: this document's turn comes once they are gone.
    """
    gated = gates.gated_queues(context.settings).get(queue)
    if gated is None:
        return False
    closed = gates.gate(context, gated).look().closed_by
    return bool(closed) or queue_depths(context.redis, [queue])[queue] >= wanted

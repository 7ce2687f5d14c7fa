"""What is to be done for a document now, derived from its row: submit, retry, resume and recovery all end here."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import is_due
from pipeline.engine.leases import Leases
from pipeline.engine.relaunch import wait_s
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.routes import provider_of, queue_of, stand_in, width
from pipeline.flows.documents.states import PAGE, DocumentStatus, PageEvent
from pipeline.storage.context import Context


class Stage(StrEnum):
    """Where the canvas of a document begins."""

    SPLIT = "split"
    CONVERT = "convert"
    MERGE = "merge"


_STAGES = {
    DocumentStatus.PENDING: Stage.SPLIT,
    DocumentStatus.PROCESSING: Stage.CONVERT,
    DocumentStatus.READY_TO_MERGE: Stage.MERGE,
}


@dataclass(frozen=True)
class Lanes:
    """Lanes that a document needs on one queue, and how many it may have there."""

    queue: str
    wanted: int
    limit: int


def plan(context: Context, document_id: str) -> Stage | None:
    """The stage to launch, and a note on the row that it was; None if nothing waits to be done.

    The note spaces out what the sweeper launches again: a message may wait long in a busy queue.
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


def lanes(context: Context, document_id: str) -> list[Lanes]:
    """The lanes for what the document has to convert now; none unless it is PROCESSING."""
    now = datetime.now(UTC)
    query = (
        select(PAGES.c.provider, func.count())
        .join(DOCUMENTS, DOCUMENTS.c.id == PAGES.c.document_id)
        .where(
            DOCUMENTS.c.id == document_id,
            DOCUMENTS.c.status == DocumentStatus.PROCESSING,
            PAGES.c.status.in_(list(PAGE.sources(PageEvent.CLAIM))),
            is_due(PAGES, now),
        )
        .group_by(PAGES.c.provider)
    )
    with context.db.read() as session:
        counts = session.execute(query).all()
    wanted: dict[str, int] = {}
    limits: dict[str, int] = {}
    for provider, pages in counts:
        asked = stand_in(context, provider)
        queue, limit = queue_of(asked), width(context.settings, asked)
        wanted[queue] = min(wanted.get(queue, 0) + pages, limit)
        limits[queue] = limit
    return [Lanes(queue, wanted[queue], limits[queue]) for queue in sorted(wanted)]


def limit_of(context: Context, queue: str) -> int:
    """How many lanes a document may have on this queue, whatever is left to do."""
    return width(context.settings, provider_of(queue))


def lane_leases(context: Context, document_id: str, queue: str, limit: int = 1_000_000) -> Leases:
    """The leases of a document's live lanes on one queue."""
    return Leases(context.redis, f"lanes:{document_id}:{queue}", limit)

"""Claims on documents, for the stages that a whole document goes through at once: splitting and merging."""

from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from pipeline.engine import claims
from pipeline.engine.claims import FREE, Claim, Owner, held_by, new_claim
from pipeline.engine.errors import PenstockError
from pipeline.flows.documents import files
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus, progress
from pipeline.flows.documents.work.page import message_of
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
MAX_STAGE_ATTEMPTS = 4
"""Times that a stage may kill its worker before the document fails."""


def claim_stage(context: Context, document_id: str, event: DocumentEvent, owner: Owner) -> tuple[Any, Claim] | None:
    """Claim the document for a stage: its row and the claim; None if it does not wait for that stage.

    A message that comes again first gives back what its earlier delivery held.
    """

    def work(session: Session) -> tuple[Any, Claim] | None:
        now = datetime.now(UTC)
        mine = DOCUMENTS.c.id == document_id
        give_back(session, now, mine, DOCUMENTS.c.request_id == owner.request_id)
        claim = new_claim(owner, now, context.settings.documents.lease_s)
        splitting = progress(DocumentStatus.SPLITTING, 0, 0, 0)
        started = {"started_at": now, "progress": splitting} if event is DocumentEvent.CLAIM_SPLIT else {}
        rows = claims.take(
            session, DOCUMENTS, DOCUMENT, event, mine,
            claim=claim, order_by=DOCUMENTS.c.created_at, limit=1, now=now, updated_at=now, **started,
        )  # fmt: skip
        return (rows[0], claim) if rows else None

    return context.db.run(work)


def fail_stage(context: Context, document_id: str, claim: Claim, error: Exception) -> None:
    """The stage ended in `error`: the document is FAILED and says why, unless the claim was taken away."""
    if isinstance(error, PenstockError):
        message = message_of(error)
        log.warning("document.failed", document=document_id, error=message)
    else:
        message = f"unexpected {type(error).__name__}: {message_of(error)}"
        log.error("document.failed", document=document_id, exc_info=error)
    now = datetime.now(UTC)
    moved = context.db.run(
        lambda session: DOCUMENT.move(
            session, DOCUMENTS, DocumentEvent.FAIL, DOCUMENTS.c.id == document_id, held_by(DOCUMENTS, claim),
            **FREE, error=message, finished_at=now, updated_at=now,
        )
    )  # fmt: skip
    if moved:
        files.remove_temp(context.settings, document_id)


def give_back(session: Session, now: datetime, *which: Any, counts: bool = True) -> list[str]:
    """Free claimed documents that match `which`, or fail them when attempts are used up; their ids.

    With `counts` off, the stage was interrupted through no fault of the document and no attempt is counted.
    """
    lost = select(DOCUMENTS).where(DOCUMENTS.c.claim_id.is_not(None), *which).with_for_update()
    rows = session.execute(lost).all()
    for row in rows:
        mine = DOCUMENTS.c.id == row.id
        if counts and row.attempts >= MAX_STAGE_ATTEMPTS:
            reason = f"{DocumentStatus(row.status).name.lower()} lost its worker {row.attempts} times"
            DOCUMENT.move(
                session, DOCUMENTS, DocumentEvent.FAIL, mine, **FREE, error=reason, finished_at=now, updated_at=now
            )
            continue
        status = DOCUMENT.target(DocumentStatus(row.status), DocumentEvent.GIVE_BACK)
        DOCUMENT.move(
            session, DOCUMENTS, DocumentEvent.GIVE_BACK, mine, **FREE, updated_at=now,
            attempts=row.attempts if counts else row.attempts - 1,
            progress=progress(status, row.pages, row.completed_count, row.progress),
            launches=0, launch_due_at=None,
        )  # fmt: skip
    return [row.id for row in rows]

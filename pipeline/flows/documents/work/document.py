"""Claims on a whole document, for the two stages that handle it as one: splitting and merging."""

from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pipeline.engine import claims
from pipeline.engine.claims import FREE, Claim, Owner, held_by, left_behind, new_claim
from pipeline.engine.errors import PenstockError
from pipeline.engine.traces import message_of
from pipeline.flows.documents import files
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus, progress
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
MAX_STAGE_ATTEMPTS = 4
"""How often a stage may lose its worker before the document fails."""


class ClaimLost(PenstockError):
    """The document was cancelled, paused or taken over: discard the work."""


def claim(context: Context, document_id: str, event: DocumentEvent, owner: Owner) -> tuple[Any, Claim] | None:
    """Claim the document for a stage. Returns its row and the claim, or None if it does not wait for that stage.

    A redelivered message first releases what its earlier delivery left behind.
    """

    def work(session: Session) -> tuple[Any, Claim] | None:
        now = datetime.now(UTC)
        mine = DOCUMENTS.c.id == document_id
        release(session, now, mine, DOCUMENTS.c.claim_id.in_(left_behind(session, DOCUMENTS, owner)))
        claim = new_claim(owner, now, context.settings.documents.lease_s)
        splitting = progress(DocumentStatus.SPLITTING, 0, 0, 0)
        started = {"started_at": now, "progress": splitting} if event is DocumentEvent.CLAIM_SPLIT else {}
        rows = claims.take(
            session, DOCUMENTS, DOCUMENT, event, mine,
            claim=claim, order_by=DOCUMENTS.c.created_at, limit=1, now=now, updated_at=now, **started,
        )  # fmt: skip
        return (rows[0], claim) if rows else None

    return context.db.run(work)


def renew(context: Context, document_id: str, claim: Claim) -> None:
    """Extend the claim's lease. Raises `ClaimLost`."""
    until = datetime.now(UTC) + timedelta(seconds=context.settings.documents.lease_s)
    held = (
        update(DOCUMENTS)
        .where(DOCUMENTS.c.id == document_id, held_by(DOCUMENTS, claim))
        .values(lease_until=until)
        .returning(DOCUMENTS.c.id)
    )
    if context.db.run(lambda session: session.execute(held).one_or_none()) is None:
        raise ClaimLost


def settle(session: Session, document_id: str, claim: Claim, event: DocumentEvent, **values: Any) -> None:
    """End the stage with `event`. Raises `ClaimLost`."""
    which = (DOCUMENTS.c.id == document_id, held_by(DOCUMENTS, claim))
    if not DOCUMENT.move(session, DOCUMENTS, event, *which, **FREE, **values, attempts=0):
        raise ClaimLost


def fail(context: Context, document_id: str, claim: Claim, error: Exception) -> None:
    """Make the document FAILED because of `error`; harmless if the claim was lost."""
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


def release(session: Session, now: datetime, *which: Any, counts: bool = True) -> list[str]:
    """Release the claimed documents that match `which`, and fail those out of attempts. Returns their ids.

    `counts`: whether the attempt counts; it does not where the document was not at fault.
    """
    claimed = select(DOCUMENTS).where(DOCUMENTS.c.claim_id.is_not(None), *which).with_for_update()
    rows = session.execute(claimed).all()
    for row in rows:
        mine = DOCUMENTS.c.id == row.id
        before = DocumentStatus(row.status)
        if counts and row.attempts >= MAX_STAGE_ATTEMPTS:
            reason = f"{before.name.lower()} lost its worker {row.attempts} times"
            DOCUMENT.move(
                session, DOCUMENTS, DocumentEvent.FAIL, mine, **FREE, error=reason, finished_at=now, updated_at=now
            )
            continue
        after = DOCUMENT.target(before, DocumentEvent.GIVE_BACK)
        DOCUMENT.move(
            session, DOCUMENTS, DocumentEvent.GIVE_BACK, mine, **FREE, updated_at=now,
            attempts=row.attempts if counts else row.attempts - 1,
            progress=progress(after, row.pages, row.completed_count, row.progress),
            launches=0, launch_due_at=None,
        )  # fmt: skip
    return [row.id for row in rows]

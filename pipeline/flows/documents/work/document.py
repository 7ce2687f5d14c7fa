"""Claims on a whole document, for the two stages that handle it as one: splitting and merging."""

from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from pipeline.engine import work
from pipeline.engine.claims import Claim, Owner
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError
from pipeline.engine.retry import Policy
from pipeline.engine.traces import message_of
from pipeline.engine.work import Outcome, Work
from pipeline.flows.documents import files
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus, progress
from pipeline.settings import Settings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
MAX_STAGE_ATTEMPTS = 4
"""How often a stage may lose its worker before the document fails."""

_LOCK = select(DOCUMENTS).where(DOCUMENTS.c.id == bindparam("of_document")).with_for_update()


class ClaimLost(PenstockError):
    """The document was cancelled, paused or taken over: discard the work."""


def lock(session: Session, document_id: str) -> Any | None:
    """The document's row, locked until the transaction ends; None if it was deleted."""
    return session.execute(_LOCK, {"of_document": document_id}).one_or_none()


def stage(name: str, claim: DocumentEvent, done: DocumentEvent, lost: str, **given_back: Any) -> Work:
    """A stage as a kind of work. The document is both unit and scope; its states tell the stages apart."""
    return Work(
        name, DOCUMENTS, DOCUMENT, claim=claim, done=done, fail=DocumentEvent.FAIL, wait=DocumentEvent.GIVE_BACK,
        give_back=DocumentEvent.GIVE_BACK, scope=DOCUMENTS.c.id, lock=lock, order=(DOCUMENTS.c.created_at,),
        policy=_policy, lease_s=_lease_s, lost=lost, given_back=given_back,
    )  # fmt: skip


def _policy(_: Settings) -> Policy:
    # Whatever a stage raises fails the document. Only lost workers are waited out, and the next one begins at once.
    return Policy((0.0,) * (MAX_STAGE_ATTEMPTS - 1))


def _lease_s(settings: Settings) -> float:
    return settings.documents.lease_s


def claim(context: Context, kind: Work, document_id: str, owner: Owner) -> tuple[Any, Claim] | None:
    """Claim the document for a stage. Returns its row and the claim, or None if it does not wait for that stage.

    A redelivered message first gives back what its earlier delivery held.
    """

    def act(session: Session) -> tuple[Any, Claim] | None:
        document, now = lock(session, document_id), context.db.now()
        if document is None:
            return None
        work.give_back_earlier(session, kind, document, document_id, owner, context.settings, now)
        mine = work.new_claim(kind, owner, context.settings, now)
        splitting: dict[str, Any] = {"started_at": now, "progress": progress(DocumentStatus.SPLITTING, 0, 0, 0)}
        begun = splitting if kind.claim is DocumentEvent.CLAIM_SPLIT else {}
        rows = work.claim(session, kind, document_id, mine, now, **begun)
        return (rows[0], mine) if rows else None

    return context.db.run(act)


def renew(context: Context, kind: Work, document_id: str, claim: Claim) -> None:
    """Extend the claim's lease. Raises `ClaimLost`."""
    until = context.db.now() + timedelta(seconds=kind.lease_s(context.settings))
    if not context.db.run(lambda session: work.renew(session, kind, document_id, claim, until)):
        raise ClaimLost


def settle(
    session: Session, context: Context, kind: Work, document: Any, claim: Claim, event: DocumentEvent | None = None,
    **values: Any,
) -> None:  # fmt: skip
    """End the stage, with `event` where it is not simply done. Raises `ClaimLost`."""
    done = Outcome(document.id, document.attempts, claim, event=event, values={"attempts": 0, **values})
    _settle(session, context, kind, done)


def fail(context: Context, kind: Work, document: Any, claim: Claim, error: Exception) -> None:
    """Make the document FAILED because of `error`; harmless if the claim was lost."""
    if isinstance(error, PenstockError):
        message = message_of(error)
        log.warning("document.failed", document=document.id, worker=claim.owner.worker_id, error=message)
    else:
        message = f"unexpected {type(error).__name__}: {message_of(error)}"
        log.error("document.failed", document=document.id, worker=claim.owner.worker_id, exc_info=error)
    failed = Outcome(document.id, document.attempts, claim, UnitError(message, kind=ErrorKind.PERMANENT))
    try:
        context.db.run(lambda session: _settle(session, context, kind, failed))
    except ClaimLost:
        return
    files.remove_temp(context.settings, document.id)


def _settle(session: Session, context: Context, kind: Work, ended: Outcome) -> None:
    row = lock(session, ended.id)
    if row is None or not work.settle(session, kind, row, [ended], context.settings, context.db.now()):
        raise ClaimLost

"""Claims on a whole document, for its two stages: splitting and merging."""

from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from pipeline.engine import work
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError, UserError, told
from pipeline.engine.retry import Policy
from pipeline.engine.traces import message_of
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes, Outcome, Work
from pipeline.flows.documents import files
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus, progress
from pipeline.reading.files.user_file import storage_error
from pipeline.reading.sandbox.limits import NO_READER
from pipeline.settings import Settings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PASSING = NO_READER | {"disk_full"}
"""Codes of passing errors, which the document did not cause."""

_LOCK = select(DOCUMENTS).where(DOCUMENTS.c.id == bindparam("of_document")).with_for_update()


class ClaimLost(PenstockError):
    """The document was cancelled or paused, or another worker claimed it: discard the work."""


def lock(session: Session, document_id: str) -> Any | None:
    """Lock the document's row until the transaction ends, and return it; None if it was deleted."""
    return session.execute(_LOCK, {"of_document": document_id}).one_or_none()


def _stage(name: str, claim: DocumentEvent, done: DocumentEvent, lost: str, **given_back: Any) -> Work:
    """Return a stage as a kind of work. The document is both unit and scope; its states tell the stages apart."""
    return Work(
        name,
        DOCUMENTS,
        DOCUMENT,
        claim=claim,
        done=done,
        fail=DocumentEvent.FAIL,
        wait=DocumentEvent.GIVE_BACK,
        give_back=DocumentEvent.GIVE_BACK,
        scope=DOCUMENTS.c.id,
        lock=lock,
        order=(DOCUMENTS.c.created_at,),
        policy=_policy,
        lease_s=_lease_s,
        lost=lost,
        given_back=given_back,
    )


def _policy(settings: Settings) -> Policy:
    return Policy(tuple(settings.documents.backoff_s))


def _lease_s(settings: Settings) -> float:
    return settings.documents.lease_s


SPLIT = _stage(
    "split",
    DocumentEvent.CLAIM_SPLIT,
    DocumentEvent.SPLIT_DONE,
    "the worker was lost while it split this document",
    progress=progress(DocumentStatus.PENDING, 0, 0, 0),
)
"""PENDING → SPLITTING → PROCESSING."""
MERGE = _stage(
    "merge", DocumentEvent.CLAIM_MERGE, DocumentEvent.MERGED, "the worker was lost while it merged this document"
)
"""READY_TO_MERGE → MERGING → COMPLETED, or PARTIAL_FAILED."""


def claim(context: Context, kind: Work, document_id: str, owner: Owner) -> Any | None:
    """Claim the document for a stage. Returns its row, or None if it does not wait for that stage; then launches the
    stage that is due.

    A redelivered message first gives back the claim of its earlier delivery.
    """

    def act(tx: Tx) -> Any | None:
        document = lock(tx, document_id)
        if document is None:
            return None
        splitting: dict[str, Any] = {"started_at": tx.now, "progress": progress(DocumentStatus.SPLITTING, 0, 0, 0)}
        values = splitting if kind.claim is DocumentEvent.CLAIM_SPLIT else {}
        claimed = work.claim_next(tx, kind, document, owner, **values)
        if claimed is None:
            tx.launch("documents", document_id)  # another stage may be due
        return claimed

    return context.db.run(act)


def renew(context: Context, kind: Work, document: Any) -> None:
    """Extend the claim's lease. Raises `ClaimLost`."""
    if not context.db.run(lambda tx: work.renew(tx, kind, document)):
        raise ClaimLost


def settle(tx: Tx, kind: Work, document: Any, event: DocumentEvent | None = None, **values: Any) -> None:
    """End the stage with `event`, or with the stage's own event of success. Raises `ClaimLost`."""
    _settle(tx, kind, Outcome(document, event=event, values={"attempts": 0, **values}))


def fail(context: Context, kind: Work, document: Any, error: Exception) -> None:
    """End the stage with `error`: retry it later if the error is passing and attempts are left, else make the document
    FAILED.

    Harmless if the claim was lost.
    """
    if isinstance(error, OSError):
        error = storage_error(error, Path(error.filename or context.settings.data_dir))
    if isinstance(error, UnitError):
        cause = error
    elif isinstance(error, UserError):
        passes = error.code in PASSING
        cause = UnitError(told(error), kind=ErrorKind.TRANSIENT if passes else ErrorKind.PERMANENT, code=error.code)
    else:
        log.error("document.crashed", document=document.id, worker=document.worker_id, exc_info=error)
        cause = UnitError(f"unexpected {type(error).__name__}: {message_of(error)}", kind=ErrorKind.PERMANENT)
    try:
        changes = context.db.run(lambda tx: _settle(tx, kind, Outcome(document, cause)))
    except ClaimLost:
        return
    word = "document.failed" if changes.failed else "document.waits"
    log.warning(word, document=document.id, worker=document.worker_id, error=str(error))
    if changes.failed:
        files.remove_temp(context.settings, document.id)


def _settle(tx: Tx, kind: Work, ended: Outcome) -> Changes:
    row = lock(tx, ended.unit.id)
    changes = row and work.settle(tx, kind, row, ended)
    if not changes:
        raise ClaimLost
    return changes

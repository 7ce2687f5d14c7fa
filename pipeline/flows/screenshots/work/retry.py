"""Retries of batches, shards, merges and vectors: their waits, and the meaning of errors.

Rules: docs/sources/screenshots.md#retries.
"""

import random
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine.errors import ErrorKind, PenstockError, UnitError, told
from pipeline.engine.retry import Policy
from pipeline.engine.settled import Settled
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes
from pipeline.flows.screenshots.scopes import FLOW
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.settings import Settings

RELEASED = (ErrorKind.RATE_LIMITED, ErrorKind.QUOTA)
"""Errors without a fault of the unit: release it, and let the gate admit it later."""
LOST = "the worker died during this work"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class JitteredPolicy(Policy):
    """Waits from a table, each plus up to `jitter_s` seconds."""

    jitter: float = 0.0
    jitter_s: float = 10.0

    def wait_s(self, attempt: int) -> float:
        return super().wait_s(attempt) + self.jitter_s * random.random()  # noqa: S311  # spreads load, guards nothing


def policy(settings: Settings) -> JitteredPolicy:
    """Return the settings' policy: by default waits of 5, 15, 60, 300, 600 s, each plus 0–10 s, between six
    attempts."""
    own = settings.screenshots
    return JitteredPolicy(tuple(own.backoff_s), jitter_s=own.jitter_s)


def as_unit_error(error: Exception) -> UnitError:
    """Convert an exception to the unit's error, so that none ends a worker's task."""
    match error:
        case UnitError():
            return error
        case PenstockError():
            return UnitError(told(error), kind=ErrorKind.PERMANENT)
        case OSError() | MemoryError() | SQLAlchemyError():
            return UnitError(f"{type(error).__name__}: {told(error)}")
    log.error("screenshots.unexpected_error", exc_info=error)
    return UnitError(f"unexpected {type(error).__name__}: {told(error)}", kind=ErrorKind.PERMANENT)


def settled(tx: Tx, changes: Changes, error: UnitError) -> Settled:
    """Return the result of a message whose unit ended in this error, and wake the flow when the unit is due.

    Work that the gate refused goes back at once, and its message queues again, because the gate makes it wait.
    """
    if not changes:
        return Settled()
    requeue = error.kind in (*RELEASED, ErrorKind.UNAVAILABLE)
    waits = WorkStatus.FAILED if changes.waiting and not requeue else WorkStatus.PENDING
    status = WorkStatus.FAILED_PERMANENT if changes.failed else waits
    retry_in_s = 0.0 if requeue else changes.retry_in_s
    tx.wake_in(FLOW, retry_in_s)
    return Settled(requeue=requeue, retry_in_s=retry_in_s, status=status)

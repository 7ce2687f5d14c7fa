"""When work is tried again, and what becomes of it until then: the same for batches, shards and merges.

Source 000, section 2.3.2.
"""

import random
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Table, and_
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE, Claim, Owner, held_by, left_behind
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError
from pipeline.engine.retry import Drop, GiveUp, Policy, Release, RetryAt, decide
from pipeline.engine.settled import Settled
from pipeline.engine.states import Machine
from pipeline.engine.traces import message_of
from pipeline.flows.screenshots.states import WorkEvent, WorkStatus
from pipeline.settings import ScreenshotSettings

RELEASED = (ErrorKind.RATE_LIMITED, ErrorKind.QUOTA)
"""Errors that are not the unit's fault: it goes back, and the gate admits it when it may."""
LOST = "the worker was lost while it worked on this"

log = structlog.get_logger(__name__)
WorkMachine = Machine[WorkStatus, WorkEvent]


@dataclass(frozen=True)
class JitteredPolicy(Policy):
    """Waits from a table, with up to `jitter_s` seconds added, whatever the wait."""

    jitter: float = 0.0
    jitter_s: float = 10.0

    def wait_s(self, attempt: int) -> float:
        return super().wait_s(attempt) + self.jitter_s * random.random()  # noqa: S311  # spreads load, guards nothing


def policy(settings: ScreenshotSettings) -> JitteredPolicy:
    """5, 15, 60, 300, 600 s, each plus 0–10 s: six attempts, for with five the last wait is never used."""
    return JitteredPolicy(tuple(settings.backoff_s), jitter_s=settings.jitter_s)


def as_unit_error(error: Exception) -> UnitError:
    """What an exception means for the unit that raised it: none may end a worker's task."""
    match error:
        case UnitError():
            return error
        case PenstockError():
            return UnitError(str(error), kind=ErrorKind.PERMANENT)
        case OSError() | MemoryError() | SQLAlchemyError():
            return UnitError(f"{type(error).__name__}: {error}")
    log.error("screenshots.unexpected_error", exc_info=error)
    return UnitError(f"unexpected {type(error).__name__}: {error}", kind=ErrorKind.PERMANENT)


def fail(
    session: Session, machine: WorkMachine, table: Table, row: Any, claim: Claim, error: UnitError, rules: Policy,
    now: datetime, **extra: Any,
) -> Settled:  # fmt: skip
    """Settle a row (with `id` and `attempts`) that `claim` holds: it waits, goes back, or becomes a dead letter.

    What the gate refused goes back at once, and its message should queue `again`: it is the gate that makes it wait.
    """
    text = message_of(error)
    values: dict[str, Any] = {"error": text, "updated_at": now, "next_run_at": None, **FREE, **extra}
    event, wait_s = WorkEvent.GIVE_BACK, None
    match decide(error, row.attempts, now, rules):
        case RetryAt(at=at):
            event, wait_s = WorkEvent.WAIT, max(0.0, (at - now).total_seconds())
            values["next_run_at"] = at
        case Release(at=at):
            wait_s = max(0.0, (at - now).total_seconds())
            values |= {"next_run_at": at, "attempts": table.c.attempts - 1}
        case Drop():
            values |= {"attempts": table.c.attempts - 1, "error": None}
        case GiveUp():
            event = WorkEvent.FAIL
            if error.kind is ErrorKind.TRANSIENT:
                values["error"] = f"{text} (after {row.attempts} attempts)"
    if not machine.move(session, table, event, table.c.id == row.id, held_by(table, claim), **values):
        return Settled()
    return Settled(again=error.kind in RELEASED, retry_in_s=wait_s, status=machine.target(WorkStatus.RUNNING, event))


def release_lost(
    session: Session, machine: WorkMachine, table: Table, which: ColumnElement[bool], rules: Policy, now: datetime
) -> int:
    """Free rows whose claims are lost; how many. A crash on the last attempt gives up the row, lest it be stranded."""
    spent = and_(which, table.c.attempts >= rules.max_attempts)
    values = {**FREE, "next_run_at": None, "updated_at": now}
    gave_up = machine.move(
        session, table, WorkEvent.FAIL, spent, **values, error=f"{LOST} (after {rules.max_attempts} attempts)"
    )  # fmt: skip
    return gave_up + machine.move(session, table, WorkEvent.GIVE_BACK, which, **values, error=LOST)


def give_back_earlier(
    session: Session, machine: WorkMachine, table: Table, owner: Owner, rules: Policy, now: datetime
) -> None:
    """Free the rows that an earlier delivery of the owner's message left behind."""
    if left := left_behind(session, table, owner):
        release_lost(session, machine, table, table.c.claim_id.in_(left), rules, now)

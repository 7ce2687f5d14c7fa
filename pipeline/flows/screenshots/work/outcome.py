"""What becomes of a claimed row whose work ended in an error, the same for batches, shards and merges."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Table, and_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE, Claim, held_by, lost
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError
from pipeline.engine.retry import Drop, GiveUp, Policy, Release, RetryAt, decide
from pipeline.engine.states import Machine
from pipeline.engine.traces import MAX_ERROR_CHARS
from pipeline.flows.screenshots.states import WorkEvent, WorkStatus

LONGEST_RELEASE_S = 1.0
"""What was refused at the gate goes back at once: it is the gate that makes it wait."""

RELEASED = (ErrorKind.RATE_LIMITED, ErrorKind.QUOTA)
"""Errors that are no fault of the unit: it goes back, and the gate lets it through when it may."""

log = structlog.get_logger(__name__)
WorkMachine = Machine[WorkStatus, WorkEvent]


@dataclass(frozen=True)
class Failed:
    """What a failure led to. `event` is None if the claim had been taken away. `retry_in_s`: the row waits so long."""

    event: WorkEvent | None
    retry_in_s: float | None = None

    @property
    def final(self) -> bool:
        return self.event is WorkEvent.FAIL


def as_unit_error(error: Exception) -> UnitError:
    """What an exception means for the unit that was worked on: nothing that one raises may end a worker's task."""
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
) -> Failed:  # fmt: skip
    """Settle a row (with `id` and `attempts`) that is held by `claim`: it waits, goes back, or is a dead letter."""
    text = (str(error) or type(error).__name__)[:MAX_ERROR_CHARS]
    values: dict[str, Any] = {"error": text, "updated_at": now, **FREE, **extra}
    wait_s: float | None = None
    match decide(error, row.attempts, now, rules):
        case RetryAt(at=at):
            event, wait_s = WorkEvent.WAIT, max(0.0, (at - now).total_seconds())
            values["next_run_at"] = at
        case Release(at=at):
            event, wait_s = WorkEvent.GIVE_BACK, min(max(0.0, (at - now).total_seconds()), LONGEST_RELEASE_S)
            values |= {"next_run_at": now + timedelta(seconds=wait_s), "attempts": table.c.attempts - 1}
        case Drop():
            event = WorkEvent.GIVE_BACK
            values |= {"next_run_at": None, "attempts": table.c.attempts - 1, "error": None}
        case GiveUp():
            tries = f" (after {row.attempts} attempts)" if error.kind is ErrorKind.TRANSIENT else ""
            event = WorkEvent.FAIL
            values |= {"next_run_at": None, "error": text + tries}
    moved = machine.move(session, table, event, table.c.id == row.id, held_by(table, claim), **values)
    return Failed(event, wait_s) if moved else Failed(None)


def free_lost(
    session: Session, machine: WorkMachine, table: Table, which: ColumnElement[bool], rules: Policy, now: datetime
) -> tuple[list[int], list[int]]:
    """Rows whose claims are lost: (given back, given up). A crash on the last attempt must not strand a row."""
    text = "the worker was lost while it worked on this"
    used_up = and_(which, table.c.attempts >= rules.max_attempts)
    gone = machine.move_returning(
        session, table, WorkEvent.FAIL, used_up, **FREE, next_run_at=None, updated_at=now,
        error=f"{text} (after {rules.max_attempts} attempts)",
    )  # fmt: skip
    back = machine.move_returning(
        session, table, WorkEvent.GIVE_BACK, which, **FREE, next_run_at=None, updated_at=now, error=text
    )
    return [row.id for row in back], [row.id for row in gone]


def any_lost(session: Session, table: Table, now: datetime, absent: set[str]) -> bool:
    """Whether there is anything to free: asked before a transaction that writes."""
    return session.execute(select(table.c.id).where(lost(table, now, absent)).limit(1)).first() is not None

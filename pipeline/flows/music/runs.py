"""Runs of the pipeline; at most one is active.

Every transaction on a run's batches locks the run first. So starts, claims, results and users' commands come one
after another, and exactly one of them sees the last batch settled.
"""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE
from pipeline.engine.transaction import Tx
from pipeline.flows.music.models import BATCHES, RUNS
from pipeline.flows.music.states import OPEN, PIPELINE, BatchStatus, PipelineEvent, PipelineState


def lock(session: Session, run_id: str) -> Any | None:
    """Lock the run's row until the transaction ends, and return it; None if it does not exist."""
    return session.execute(select(RUNS).where(RUNS.c.id == run_id).with_for_update()).one_or_none()


def lock_active(session: Session) -> Any | None:
    """Lock the active run's row until the transaction ends, and return it; None if no run is active."""
    return session.execute(select(RUNS).where(RUNS.c.active == 1).with_for_update()).one_or_none()


def move(tx: Tx, run: Any, event: PipelineEvent, **values: Any) -> None:
    """Move a run that the caller has locked. Raises `IllegalTransition`."""
    PIPELINE.target(PipelineState(run.status), event)
    unchanged = (RUNS.c.id == run.id, RUNS.c.status == run.status)
    moved = PIPELINE.move(tx, RUNS, event, *unchanged, updated_at=tx.now, **values)
    assert moved == 1, "the caller has not locked the run"


def end(tx: Tx, run: Any, event: PipelineEvent, outcome: str, error: str | None = None) -> None:
    """End a run that the caller has locked, so that the next one may start."""
    move(tx, run, event, **FREE, active=None, next_run_at=None, outcome=outcome, error=error, finished_at=tx.now)


def has_open(session: Session, run_id: str) -> bool:
    """Whether the run has a batch that has not ended."""
    query = select(BATCHES.c.id).where(BATCHES.c.run_id == run_id, BATCHES.c.status.in_(OPEN)).limit(1)
    return session.execute(query).first() is not None


def count_under_way(session: Session, run_id: str) -> int:
    """Count the run's batches that a worker processes, or that are queued."""
    under_way = BATCHES.c.status.in_([BatchStatus.QUEUED, BatchStatus.PROCESSING])
    return session.execute(select(func.count()).where(BATCHES.c.run_id == run_id, under_way)).scalar_one()

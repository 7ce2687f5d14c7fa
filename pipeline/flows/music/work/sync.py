"""The sync of a run as a unit of work: claimed, so that one worker does it, and renewed page by page."""

import json
from collections.abc import Collection
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from pipeline.engine import claims
from pipeline.engine.claims import FREE, Claim, Owner, held_by, left_behind, new_claim
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError, UserError
from pipeline.engine.retry import Policy, RetryAt, decide
from pipeline.engine.traces import message_of
from pipeline.flows.music import runs
from pipeline.flows.music.library.songs import LibraryError, SyncReport
from pipeline.flows.music.library.sync import sync_libraries
from pipeline.flows.music.models import RUNS
from pipeline.flows.music.states import PIPELINE, PipelineEvent, PipelineState
from pipeline.flows.music.work.batch import UNLAUNCHED, policy
from pipeline.storage.context import Context


class ClaimLost(PenstockError):
    """The run was stopped, paused or taken over meanwhile. The songs that were read stay."""


def sync_run(context: Context, run_id: str, owner: Owner) -> float | None:
    """Sync for a run if it waits for that. Seconds until another try, if one is needed. Failures end on the row."""
    held = claim(context, run_id, owner)
    if held is None:
        return None
    try:
        report = sync_libraries(context, lambda seen, total: _renew(context, run_id, held))  # noqa: ARG005
        context.db.run(lambda session: _settle(session, run_id, held, report))
    except ClaimLost:
        return None
    except UserError as error:
        return _fail(context, run_id, held, error)
    return None


def claim(context: Context, run_id: str, owner: Owner) -> Claim | None:
    """Claim a run that waits for its sync; None if it does not."""

    def work(session: Session) -> Claim | None:
        now = datetime.now(UTC)
        if runs.lock(session, run_id) is None:
            return None
        if left := left_behind(session, RUNS, owner):
            session.execute(update(RUNS).where(RUNS.c.claim_id.in_(left)).values(**FREE))
        held = new_claim(owner, now, context.settings.music.lease_s)
        rows = claims.take(
            session, RUNS, PIPELINE, PipelineEvent.CLAIM, RUNS.c.id == run_id, RUNS.c.claim_id.is_(None),
            claim=held, order_by=RUNS.c.id, limit=1, now=now, updated_at=now,
        )  # fmt: skip
        return held if rows else None

    return context.db.run(work)


def _renew(context: Context, run_id: str, held: Claim) -> None:
    until = datetime.now(UTC) + timedelta(seconds=context.settings.music.lease_s)
    mine = (RUNS.c.id == run_id, held_by(RUNS, held))
    renewed = update(RUNS).where(*mine).values(lease_until=until).returning(RUNS.c.id)
    if context.db.run(lambda session: session.execute(renewed).one_or_none()) is None:
        raise ClaimLost


def _settle(session: Session, run_id: str, held: Claim, report: SyncReport) -> None:
    run = runs.lock(session, run_id)
    if run is None or run.claim_id != held.id:
        raise ClaimLost
    done = {**FREE, "synced": True, "attempts": 0, "error": None, "sync_report": json.dumps(asdict(report))}
    runs.move(session, run, PipelineEvent.SYNC_COMPLETE, datetime.now(UTC), **done)


def _fail(context: Context, run_id: str, held: Claim, error: UserError) -> float | None:
    """The library cannot be read: seconds until it is tried again, None if the run failed."""
    passes = isinstance(error, LibraryError) and error.transient
    kind = ErrorKind.TRANSIENT if passes else ErrorKind.PERMANENT
    failure = UnitError(str(error), kind=kind, code=error.code)

    def work(session: Session) -> float | None:
        run = runs.lock(session, run_id)
        if run is None or run.claim_id != held.id:
            return None
        return _retry_or_end(session, run, failure, policy(context), datetime.now(UTC))

    return context.db.run(work)


def release_lost(session: Session, run: Any, which: ColumnElement[bool], rules: Policy, now: datetime) -> int:
    """Give back the sync of a locked run that matches `which`, or fail the run; how many syncs it were."""
    if session.execute(select(RUNS.c.id).where(RUNS.c.id == run.id, which)).first() is None:
        return 0
    _retry_or_end(session, run, UnitError("the worker was lost while it synced the library"), rules, now)
    return 1


def _retry_or_end(session: Session, run: Any, error: UnitError, rules: Policy, now: datetime) -> float | None:
    """A sync ended in an error: seconds until it is tried again, None if the run fails because of it."""
    decision = decide(error, run.attempts, now, rules)
    if isinstance(decision, RetryAt) and run.active:
        back = {**UNLAUNCHED, "next_run_at": decision.at, "error": message_of(error), "updated_at": now}
        session.execute(update(RUNS).where(RUNS.c.id == run.id).values(**back))
        return (decision.at - now).total_seconds()
    if run.status == PipelineState.SYNCING:
        runs.end(session, run, PipelineEvent.FAIL, "failed", now, message_of(error))
    else:
        session.execute(update(RUNS).where(RUNS.c.id == run.id).values(**FREE, updated_at=now))
    return None


def release(session: Session, worker_ids: Collection[str], now: datetime) -> None:
    """Give back the syncs that these workers, which are ending, still hold; no attempt is counted."""
    held = (RUNS.c.worker_id.in_(worker_ids), RUNS.c.claim_id.is_not(None))
    back = {**UNLAUNCHED, "attempts": RUNS.c.attempts - 1, "updated_at": now}
    session.execute(update(RUNS).where(*held).values(**back))

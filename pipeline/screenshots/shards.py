"""Shards: parts of a batch, each one call. A result is stored as soon as it is there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import and_, func, select, update
from sqlalchemy.orm import Session

from pipeline.engine import claims
from pipeline.engine.claims import FREE, Claim, Owner, held_by, new_claim
from pipeline.engine.errors import UnitError
from pipeline.engine.retry import GiveUp, decide
from pipeline.screenshots import outcomes, working
from pipeline.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.screenshots.outcomes import Failed
from pipeline.screenshots.states import BATCH, SHARD, WorkEvent, WorkStatus
from pipeline.storage.context import Context


@dataclass(frozen=True)
class ShardUnit:
    """A claimed shard: its frames in the order of capture, and the claim to commit its result with."""

    id: int
    batch_id: int
    number: int
    attempts: int
    history_pack: str
    claim: Claim
    shots: list[Any] = field(repr=False)


def claim(context: Context, batch_id: int, owner: Owner) -> ShardUnit | None:
    """The batch's next shard that is due; None if there is none, or the batch is not at work."""

    def work(session: Session) -> ShardUnit | None:
        now = datetime.now(UTC)
        batch = working.lock(session, batch_id)
        if batch is None or batch.status != WorkStatus.RUNNING:
            return None
        held = new_claim(owner, now, context.settings.screenshots.stale_running_s)
        rows = claims.take(
            session, SHARDS, SHARD, WorkEvent.CLAIM, SHARDS.c.batch_id == batch_id, claim=held,
            order_by=SHARDS.c.number, limit=1, now=now, updated_at=now,
        )  # fmt: skip
        if not rows:
            return None
        # A batch is held as long as its shards are: its lease goes with theirs.
        session.execute(update(BATCHES).where(BATCHES.c.id == batch_id).values(lease_until=held.expires_at))
        shots = _shots(session, rows[0])
        return ShardUnit(rows[0].id, batch_id, rows[0].number, rows[0].attempts, batch.history_pack, held, shots)

    return context.db.run(work)


def _shots(session: Session, shard: Any) -> list[Any]:
    ids: list[int] = json.loads(shard.shot_ids)
    found = {row.id: row for row in session.execute(select(SHOTS).where(SHOTS.c.id.in_(ids)))}
    return [found[shot_id] for shot_id in ids if shot_id in found]


def done(context: Context, unit: ShardUnit, result: str, model: str, trace: dict[str, Any] | None = None) -> bool:
    """Store a shard's result; False if its claim was taken away."""

    def work(session: Session) -> bool:
        now = datetime.now(UTC)
        working.lock(session, unit.batch_id)
        working.record_call(session, unit.batch_id, str(unit.id), trace)
        mine = and_(SHARDS.c.id == unit.id, held_by(SHARDS, unit.claim))
        values = {"result": result, "model": model[:120], "error": None, "updated_at": now}
        return bool(SHARD.move(session, SHARDS, WorkEvent.DONE, mine, **FREE, **values))

    return context.db.run(work)


def failed(context: Context, unit: ShardUnit, error: UnitError, trace: dict[str, Any] | None = None) -> Failed:
    """A shard ended in an error. What its siblings found stays."""

    def work(session: Session) -> Failed:
        now = datetime.now(UTC)
        working.lock(session, unit.batch_id)
        working.record_call(session, unit.batch_id, str(unit.id), trace)
        return outcomes.fail(session, SHARD, SHARDS, unit, unit.claim, error, outcomes.policy(context.settings), now)

    return context.db.run(work)


def settle(context: Context, batch_id: int) -> WorkStatus | None:
    """Called when the lanes of a batch ended: how its shards stand. None: some are under way, or the batch is not.

    SUCCEEDED: all have a result, `working.resume` may finish it. FAILED: it waits, and its successful shards keep what
    they have. FAILED_PERMANENT: a shard was given up, and so is the batch.
    """

    def work(session: Session) -> WorkStatus | None:
        now = datetime.now(UTC)
        batch = working.lock(session, batch_id)
        if batch is None or batch.status != WorkStatus.RUNNING:
            return None
        rows = session.execute(select(SHARDS).where(SHARDS.c.batch_id == batch_id).order_by(SHARDS.c.number)).all()
        states = {WorkStatus(row.status) for row in rows}
        if states <= {WorkStatus.SUCCEEDED}:
            return WorkStatus.SUCCEEDED
        if WorkStatus.RUNNING in states:
            return None
        if WorkStatus.FAILED_PERMANENT in states:
            return _end(session, batch, WorkEvent.FAIL, rows, now)
        if WorkStatus.FAILED not in states:
            return None  # pending ones: a lane was lost, the sweeper adds one
        return _wait(context, session, batch, rows, now)

    return context.db.run(work)


def _wait(context: Context, session: Session, batch: Any, rows: Sequence[Any], now: datetime) -> WorkStatus:
    error = UnitError(
        next((row.error for row in rows if row.status == WorkStatus.FAILED and row.error), "a shard failed")
    )
    if isinstance(decide(error, batch.attempts, now, outcomes.policy(context.settings)), GiveUp):
        return _end(session, batch, WorkEvent.FAIL, rows, now)
    due = [row.next_run_at for row in rows if row.next_run_at is not None]
    return _end(session, batch, WorkEvent.WAIT, rows, now, next_run_at=min(due) if due else None)


def _end(
    session: Session, batch: Any, event: WorkEvent, rows: Sequence[Any], now: datetime, **values: Any
) -> WorkStatus:
    bad = [row for row in rows if row.status != WorkStatus.SUCCEEDED and row.error]
    error = "; ".join(f"shard {row.number}: {row.error}" for row in bad)[: outcomes.MAX_ERROR_CHARS]
    BATCH.move(session, BATCHES, event, BATCHES.c.id == batch.id, **FREE, error=error, updated_at=now, **values)
    working.follow(session, [batch.id], event, error, now)
    return BATCH.target(WorkStatus.RUNNING, event)


def results(context: Context, batch_id: int) -> list[str]:
    """The stored results of a batch, in the order of its shards."""
    found = select(SHARDS.c.result).where(SHARDS.c.batch_id == batch_id, SHARDS.c.status == WorkStatus.SUCCEEDED)
    with context.db.read() as session:
        return [text for text in session.execute(found.order_by(SHARDS.c.number)).scalars() if text]


def count(context: Context, batch_id: int) -> dict[str, int]:
    """How many shards are in which state."""
    query = select(SHARDS.c.status, func.count()).where(SHARDS.c.batch_id == batch_id).group_by(SHARDS.c.status)
    with context.db.read() as session:
        return dict(session.execute(query).all())

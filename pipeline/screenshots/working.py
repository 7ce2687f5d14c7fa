"""A batch as a unit of work: begun, settled when its shards are, finished with its nodes. One transaction each.

Every one of them locks the batch's row first, so that exactly one counts the last shard.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import and_, insert, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine import claims
from pipeline.engine.claims import FREE, Claim, Owner, held_by, new_claim
from pipeline.engine.errors import UnitError
from pipeline.engine.tables import insert_if_absent
from pipeline.engine.traces import AiCall
from pipeline.screenshots import outcomes
from pipeline.screenshots.graph import nodes
from pipeline.screenshots.graph.nodes import Draft
from pipeline.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.screenshots.outcomes import Failed
from pipeline.screenshots.states import BATCH, SCREENSHOT, SHARD, WorkEvent, WorkStatus
from pipeline.storage.context import Context

FLOW = "screenshots"


class Lane(StrEnum):
    """Which share of the workers a batch has. Source 000, section 2.4.1."""

    REALTIME = "realtime"
    RECOVERY = "recovery"


@dataclass(frozen=True)
class BatchUnit:
    """A claimed batch, the claim to finish it with, and its shards that have no result yet."""

    id: int
    attempts: int
    claim: Claim
    open_shards: list[int]
    row: Any = field(repr=False)


@dataclass(frozen=True)
class Evidence:
    """What the model read in one frame."""

    ocr_text: str = ""
    ui_text_snippets: Sequence[str] = ()
    entities: Sequence[str] = ()
    app_guess: str = ""


def lock(session: Session, batch_id: int) -> Any | None:
    """The batch's row, locked until the transaction ends; None if there is none (any more)."""
    return session.execute(select(BATCHES).where(BATCHES.c.id == batch_id).with_for_update()).one_or_none()


def in_lane(lane: Lane, recovery_age_s: float, now: datetime) -> Any:
    """Batches of a lane: tried before or old → recovery; fresh → realtime. As a condition for `begin`."""
    old = or_(BATCHES.c.attempts > 0, BATCHES.c.created_at <= now - timedelta(seconds=recovery_age_s))
    return old if lane is Lane.RECOVERY else ~old


def begin(context: Context, owner: Owner, *, batch_id: int | None = None, lane: Lane | None = None) -> BatchUnit | None:
    """Claim this batch, or the next due one of a lane; its shards are planned, once, and those that failed wait again.

    Results of earlier attempts stay: `open_shards` names only what must be asked (again). None: nothing to claim.
    """
    rules = context.settings.screenshots

    def work(session: Session) -> BatchUnit | None:
        now = datetime.now(UTC)
        which = [BATCHES.c.id == batch_id] if batch_id is not None else []
        if lane is not None:
            which.append(in_lane(lane, rules.recovery_age_s, now))
        held = new_claim(owner, now, rules.stale_running_s)
        rows = claims.take(
            session, BATCHES, BATCH, WorkEvent.CLAIM, *which, claim=held, order_by=BATCHES.c.created_at, limit=1,
            now=now, updated_at=now, error=None, launches=0, launch_due_at=None,
        )  # fmt: skip
        if not rows:
            return None
        batch = rows[0]
        SCREENSHOT.move(session, SHOTS, WorkEvent.CLAIM, SHOTS.c.batch_id == batch.id, updated_at=now, error=None)
        _plan(session, batch, rules.shard_size, now)
        return BatchUnit(batch.id, batch.attempts, held, _open_shards(session, batch.id), batch)

    return context.db.run(work)


def _plan(session: Session, batch: Any, size: int, now: datetime) -> None:
    ids: list[int] = json.loads(batch.shot_ids)
    begun = select(SHARDS.c.id).where(SHARDS.c.batch_id == batch.id).limit(1)
    if session.execute(begun).first() is None:
        for number, start in enumerate(range(0, len(ids), size)):
            row = {
                "batch_id": batch.id, "number": number, "shot_ids": json.dumps(ids[start : start + size]),
                "status": WorkStatus.PENDING, "attempts": 0, "model": "", "created_at": now, "updated_at": now,
            }  # fmt: skip
            insert_if_absent(session, SHARDS, row, "batch_id", "number")
    # The batch is due, and so are its shards; its attempts are the ones that count.
    mine = SHARDS.c.batch_id == batch.id
    SHARD.move(session, SHARDS, WorkEvent.RETRY, mine, attempts=0, next_run_at=None, updated_at=now)
    waits = and_(mine, SHARDS.c.status == WorkStatus.FAILED)
    session.execute(update(SHARDS).where(waits).values(next_run_at=None))


def _open_shards(session: Session, batch_id: int) -> list[int]:
    wanted = select(SHARDS.c.id).where(SHARDS.c.batch_id == batch_id, SHARDS.c.status != WorkStatus.SUCCEEDED)
    return list(session.execute(wanted.order_by(SHARDS.c.number)).scalars())


def resume(context: Context, batch_id: int, owner: Owner) -> BatchUnit | None:
    """Take the claim of a running batch over, to finish it; None if it is not running or its shards are not all done.

    Whoever held it before cannot commit any more: of two that finish, one does.
    """

    def work(session: Session) -> BatchUnit | None:
        now = datetime.now(UTC)
        batch = lock(session, batch_id)
        if batch is None or batch.status != WorkStatus.RUNNING or _open_shards(session, batch_id):
            return None
        held = new_claim(owner, now, context.settings.screenshots.stale_running_s)
        session.execute(update(BATCHES).where(BATCHES.c.id == batch_id).values(**held.columns, updated_at=now))
        return BatchUnit(batch_id, batch.attempts, held, [], batch)

    return context.db.run(work)


def keep_index(context: Context, unit: BatchUnit, index_json: str, vlm_ms: int) -> bool:
    """Store the merged result of the shards, before the next paid call; False if the claim was taken away."""

    def work(session: Session) -> bool:
        mine = and_(BATCHES.c.id == unit.id, held_by(BATCHES, unit.claim))
        kept = update(BATCHES).where(mine).values(index_json=index_json, vlm_ms=vlm_ms, updated_at=datetime.now(UTC))
        return session.execute(kept.returning(BATCHES.c.id)).first() is not None

    return context.db.run(work)


def finish(
    context: Context, unit: BatchUnit, evidence: Mapping[int, Evidence], drafts: Sequence[Draft], text_ms: int = 0
) -> list[int] | None:
    """The batch is done: what was read goes to its frames, nodes are written. Their ids; None if the claim is gone."""

    def work(session: Session) -> list[int] | None:
        now = datetime.now(UTC)
        batch = lock(session, unit.id)
        if batch is None or batch.claim_id != unit.claim.id:
            return None
        days = context.settings.screenshots.retention_days
        _keep_evidence(session, unit.id, evidence, now)
        SCREENSHOT.move(
            session, SHOTS, WorkEvent.DONE, SHOTS.c.batch_id == unit.id,
            retention_expires_at=now + timedelta(days=days), updated_at=now, error=None,
        )  # fmt: skip
        made = nodes.write(session, batch, drafts, now)
        BATCH.move(
            session, BATCHES, WorkEvent.DONE, BATCHES.c.id == unit.id, held_by(BATCHES, unit.claim), **FREE,
            text_ms=text_ms, error=None, next_run_at=None, finished_at=now, updated_at=now,
        )  # fmt: skip
        return made

    return context.db.run(work)


def _keep_evidence(session: Session, batch_id: int, evidence: Mapping[int, Evidence], now: datetime) -> None:
    for shot_id, found in evidence.items():
        # Only frames of this batch: a model may answer about one that it was not asked about.
        mine = and_(SHOTS.c.id == shot_id, SHOTS.c.batch_id == batch_id)
        values = {
            "ocr_text": found.ocr_text, "app_guess": found.app_guess[:200], "updated_at": now,
            "ui_text_snippets": json.dumps(list(found.ui_text_snippets), ensure_ascii=False),
            "detected_entities": json.dumps(list(found.entities), ensure_ascii=False),
        }  # fmt: skip
        session.execute(update(SHOTS).where(mine).values(**values))


def fail(context: Context, unit: BatchUnit, error: UnitError) -> Failed:
    """The batch ended in an error: it waits, goes back, or is a dead letter, and its frames with it."""

    def work(session: Session) -> Failed:
        now = datetime.now(UTC)
        lock(session, unit.id)
        failed = outcomes.fail(session, BATCH, BATCHES, unit, unit.claim, error, outcomes.policy(context.settings), now)
        if failed.event is not None:
            follow(session, [unit.id], failed.event, str(error), now)
        return failed

    return context.db.run(work)


def follow(session: Session, batch_ids: Sequence[int], event: WorkEvent, error: str, now: datetime) -> None:
    """The frames of batches go where their batch went, so that none is stuck in `running`."""
    mine = SHOTS.c.batch_id.in_(batch_ids)
    SCREENSHOT.move(session, SHOTS, event, mine, error=error[: outcomes.MAX_ERROR_CHARS] or None, updated_at=now)


def record_call(session: Session, batch_id: int, unit: str, trace: Mapping[str, Any] | None) -> None:
    """Write the ledger of calls: also of those whose result is discarded, for they were paid for."""
    if trace is not None:
        session.execute(insert(AiCall), [{"flow": FLOW, "scope_id": str(batch_id), "unit": unit, **trace}])

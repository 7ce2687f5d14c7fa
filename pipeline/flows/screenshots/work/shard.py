"""Shards: parts of a batch, each one call. A result is stored as soon as it is there. Source 000, 1.4 and 1.5."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, select, update
from sqlalchemy.orm import Session

from pipeline.engine import claims, traces
from pipeline.engine.claims import FREE, Claim, Owner, held_by, new_claim
from pipeline.engine.errors import UnitError
from pipeline.engine.retry import GiveUp, decide
from pipeline.engine.traces import MAX_ERROR_CHARS
from pipeline.flows.screenshots.live import screenshots_in_force
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.rules.schemas import VlmIndex
from pipeline.flows.screenshots.rules.shard_merge import merge_shards
from pipeline.flows.screenshots.states import BATCH, SCREENSHOT, SHARD, Ask, Step, WorkEvent, WorkStatus
from pipeline.flows.screenshots.work import batch as working
from pipeline.flows.screenshots.work import outcome, retry
from pipeline.flows.screenshots.work.batch import UsedCall
from pipeline.flows.screenshots.work.outcome import Failed
from pipeline.settings import ScreenshotSettings
from pipeline.storage.context import Context


@dataclass(frozen=True)
class ShardUnit:
    """A claimed shard: its frames by screen id (their place in the batch, from 1), and the claim to commit with."""

    id: int
    batch_id: int
    attempts: int
    claim: Claim
    history_pack: str
    row: Any = field(repr=False)
    shots: dict[int, Any] = field(repr=False)


def claim(context: Context, batch_id: int, owner: Owner) -> ShardUnit | None:
    """The batch's next shard that is due; None if there is none, or the batch is not analysed now.

    A message that comes again first gives back what its earlier delivery held in this worker, whose process has died.
    What another worker holds is left alone: it may live and be in its call, which must not be paid for again.
    """

    def work(session: Session) -> ShardUnit | None:
        now = datetime.now(UTC)
        batch = working.lock(session, batch_id)
        if batch is None or batch.step != Step.ANALYSE or batch.status != WorkStatus.RUNNING:
            return None
        mine = SHARDS.c.batch_id == batch_id
        earlier = and_(mine, SHARDS.c.request_id == owner.request_id, SHARDS.c.worker_id == owner.worker_id)
        outcome.free_lost(session, SHARD, SHARDS, earlier, retry.policy(context.settings.screenshots), now)
        held = new_claim(owner, now, working.lease_s(context))
        rows = claims.take(
            session, SHARDS, SHARD, WorkEvent.CLAIM, mine, claim=held, order_by=SHARDS.c.number, limit=1, now=now,
            updated_at=now,
        )  # fmt: skip
        if not rows:
            return None
        places = {shot_id: place for place, shot_id in enumerate(json.loads(batch.shot_ids), start=1)}
        shots = {places[shot.id]: shot for shot in working.shots_of(session, rows[0].shot_ids)}
        return ShardUnit(rows[0].id, batch_id, rows[0].attempts, held, batch.history_pack, rows[0], shots)

    return context.db.run(work)


def done(
    context: Context, unit: ShardUnit, index: VlmIndex, call: UsedCall, notes: Sequence[str] = (),
    trace: dict[str, Any] | None = None,
) -> bool:  # fmt: skip
    """Store a shard's result; False if its claim was taken away."""

    def work(session: Session) -> bool:
        now = _begin(session, unit, trace)
        values = {
            "result": index.model_dump_json(), "reply": None, "model": call.model[:120], "error": None,
            "notes": working.as_notes(notes), "next_run_at": None, "updated_at": now,
        }  # fmt: skip
        kept = bool(SHARD.move(session, SHARDS, WorkEvent.DONE, _held(unit), **FREE, **values))
        if kept and call.shot_ids:
            working.record_used(session, call, now, batch_id=unit.batch_id)
        return kept

    return context.db.run(work)


def to_repair(context: Context, unit: ShardUnit, reply: str, trace: dict[str, Any] | None) -> bool:
    """The reply is no use: it is kept, and may be mended once, by another message of the same attempt."""

    def work(session: Session) -> bool:
        now = _begin(session, unit, trace)
        back = {**FREE, "attempts": SHARDS.c.attempts - 1, "next_run_at": None, "updated_at": now}
        return bool(SHARD.move(session, SHARDS, WorkEvent.STEP_DONE, _held(unit), **back, reply=reply, ask=Ask.REPAIR))

    return context.db.run(work)


def failed(context: Context, unit: ShardUnit, error: UnitError, trace: dict[str, Any] | None = None) -> Failed:
    """A shard ended in an error. What its siblings found stays."""

    def work(session: Session) -> Failed:
        now = _begin(session, unit, trace)
        rules = retry.policy(context.settings.screenshots)
        return outcome.fail(session, SHARD, SHARDS, unit, unit.claim, error, rules, now)

    return context.db.run(work)


def _begin(session: Session, unit: ShardUnit, trace: dict[str, Any] | None) -> datetime:
    batch = working.lock(session, unit.batch_id)
    traces.record(session, working.FLOW, unit.batch_id, unit.id, trace, gone=batch is None)
    return datetime.now(UTC)


def _held(unit: ShardUnit) -> Any:
    return and_(SHARDS.c.id == unit.id, held_by(SHARDS, unit.claim))


@dataclass(frozen=True)
class Settled:
    """How a batch stands when the messages for its shards have ended. `status` None: shards are still under way."""

    status: WorkStatus | None
    retry_in_s: float | None = None


def settle(context: Context, batch_id: int) -> Settled:
    """Called when the messages for a batch's shards ended. Exactly one caller sees it end.

    All succeeded: their results are merged and stored, its frames are done, and it waits to become nodes (`pending`).
    Else it waits (`failed`), or is given up with its frames; what its shards found stays.
    """
    in_force = screenshots_in_force(context)

    def work(session: Session) -> Settled:
        now = datetime.now(UTC)
        batch = working.lock(session, batch_id)
        if batch is None or batch.step != Step.ANALYSE or batch.status != WorkStatus.RUNNING:
            return Settled(None)
        rows = session.execute(select(SHARDS).where(SHARDS.c.batch_id == batch_id).order_by(SHARDS.c.number)).all()
        states = {WorkStatus(row.status) for row in rows}
        if states <= {WorkStatus.SUCCEEDED}:
            _merge(in_force, session, batch, rows, now)
            return Settled(WorkStatus.PENDING)
        if WorkStatus.RUNNING in states or WorkStatus.PENDING in states:
            return Settled(None)  # those without a message get one from the sweeper
        if WorkStatus.FAILED_PERMANENT in states:
            return _end(session, batch, WorkEvent.FAIL, rows, now)
        return _wait(context, session, batch, rows, now)

    return context.db.run(work)


def _merge(rules: ScreenshotSettings, session: Session, batch: Any, rows: Sequence[Any], now: datetime) -> None:
    parts = [VlmIndex.model_validate_json(row.result) for row in rows]
    index = merge_shards(parts, rules.max_segments_per_batch)
    _keep_evidence(session, batch.id, index, now)
    expires = now + timedelta(days=rules.retention_days)
    SCREENSHOT.move(
        session, SHOTS, WorkEvent.DONE, SHOTS.c.batch_id == batch.id, retention_expires_at=expires, updated_at=now,
        error=None,
    )  # fmt: skip
    took = _took_ms(batch, now)
    said = [note for row in rows for note in json.loads(row.notes)]
    BATCH.move(
        session, BATCHES, WorkEvent.STEP_DONE, BATCHES.c.id == batch.id, step=Step.EXPAND, attempts=0, error=None,
        index_json=index.model_dump_json(), notes=working.as_notes(said),
        # Not the queue that it was analysed from: a breaker of that one is no concern of its next message.
        vlm_ms=batch.vlm_ms + took, queue="", updated_at=now, **working.launched(now),
    )  # fmt: skip
    # Merged: kept once is enough.
    session.execute(update(SHARDS).where(SHARDS.c.batch_id == batch.id).values(result=None, reply=None))


def _keep_evidence(session: Session, batch_id: int, index: VlmIndex, now: datetime) -> None:
    for seen in index.screenshots:
        text = "\n".join([seen.ocr_text, *seen.ui_text_snippets]).casefold()
        named = [name for name in index.entities if name.casefold() in text]
        values = {
            "ocr_text": seen.ocr_text, "app_guess": (seen.app_guess.name if seen.app_guess else "")[:200],
            "ui_text_snippets": json.dumps(seen.ui_text_snippets, ensure_ascii=False),
            "detected_entities": json.dumps(named, ensure_ascii=False), "updated_at": now,
        }  # fmt: skip
        # Only frames of this batch: a model may answer about one that it was not asked about.
        mine = and_(SHOTS.c.id == seen.screenshot_id, SHOTS.c.batch_id == batch_id)
        session.execute(update(SHOTS).where(mine).values(**values))


def _wait(context: Context, session: Session, batch: Any, rows: Sequence[Any], now: datetime) -> Settled:
    said = [row.error for row in rows if row.status == WorkStatus.FAILED and row.error]
    error = UnitError(said[0] if said else "a shard failed")
    if isinstance(decide(error, batch.attempts, now, retry.policy(context.settings.screenshots)), GiveUp):
        return _end(session, batch, WorkEvent.FAIL, rows, now)
    # The longest: what a server asked for is not cut short by a sibling's wait.
    due = max((row.next_run_at for row in rows if row.next_run_at is not None), default=None)
    _end(session, batch, WorkEvent.WAIT, rows, now, next_run_at=due)
    return Settled(WorkStatus.FAILED, max(0.0, (due - now).total_seconds()) if due else 0.0)


def _end(session: Session, batch: Any, event: WorkEvent, rows: Sequence[Any], now: datetime, **values: Any) -> Settled:
    bad = [row for row in rows if row.status != WorkStatus.SUCCEEDED and row.error]
    error = "; ".join(f"shard {row.number + 1}: {row.error}" for row in bad)[:MAX_ERROR_CHARS]
    BATCH.move(
        session, BATCHES, event, BATCHES.c.id == batch.id, error=error, updated_at=now, launch_due_at=None, launches=0,
        vlm_ms=batch.vlm_ms + _took_ms(batch, now), **values,
    )  # fmt: skip
    working.follow(session, [batch.id], event, error, now)
    return Settled(BATCH.target(WorkStatus.RUNNING, event))


def _took_ms(batch: Any, now: datetime) -> int:
    """Since the batch was claimed, which nothing has changed since: waits between attempts do not count."""
    return max(0, int((now - batch.updated_at).total_seconds() * 1000))

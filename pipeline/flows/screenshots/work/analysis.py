"""A batch's first step: workers analyse its shards, and the last one to end merges them.

Rules: docs/sources/screenshots.md#shards.

During the analysis, workers claim the shards and not the batch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, select, update

from pipeline.engine.claims import is_due
from pipeline.engine.errors import UnitError
from pipeline.engine.retry import GiveUp, decide
from pipeline.engine.settled import Settled
from pipeline.engine.tables import insert_if_absent
from pipeline.engine.traces import MAX_ERROR_CHARS
from pipeline.engine.transaction import Tx
from pipeline.flows.screenshots.live_settings import screenshots_in_force
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.rules.batches import portions, waited_ms
from pipeline.flows.screenshots.rules.schemas import AppGuess, VlmIndex
from pipeline.flows.screenshots.rules.shard_merge import merge_shards
from pipeline.flows.screenshots.scopes import FLOW, Scope
from pipeline.flows.screenshots.states import (
    BATCH,
    CLAIMABLE,
    SCREENSHOT,
    SHARD,
    Ask,
    Step,
    WorkEvent,
    WorkStatus,
)
from pipeline.flows.screenshots.work import batch, retry
from pipeline.settings import ScreenshotSettings
from pipeline.storage.context import Context

MAX_MS = 2**31 - 1
"""The column's maximum, 24 days: frames may wait longer for a provider."""


@dataclass(frozen=True)
class Analysis:
    """A batch under analysis. `due`: the number of its due shards."""

    row: Any = field(repr=False)
    due: int
    is_new: bool
    """Claimed now, instead of running before."""


def claim(context: Context, batch_id: int) -> Analysis | None:
    """Claim a batch for its analysis, plan its shards if it has none, and make failed shards due. None if it is not
    due.

    Returns a batch under analysis, too, with `is_new=False`, so that the caller can send messages for its shards again.
    Results of its shards stay.
    """
    shard_size = screenshots_in_force(context).shard_size

    def act(tx: Tx) -> Analysis | None:
        row = batch.lock(tx, batch_id)
        if row is None or row.step != Step.ANALYSE:
            return None
        this_batch = BATCHES.c.id == batch_id
        claimed = BATCH.move_returning(
            tx,
            BATCHES,
            WorkEvent.CLAIM,
            this_batch,
            is_due(BATCHES, tx.now),
            attempts=BATCHES.c.attempts + 1,
            next_run_at=None,
            error=None,
            started_at=row.started_at or tx.now,
            updated_at=tx.now,
            rests_since=None,
            waited_ms=waited_ms(row, tx.now),
        )
        if not claimed and row.status != WorkStatus.RUNNING:
            return None
        if claimed:
            _plan_shards(tx, row, shard_size)
            _begin_frames(tx, batch_id)
        shards = tx.execute(select(SHARDS).where(SHARDS.c.batch_id == batch_id)).all()
        due = [each for each in shards if each.status in CLAIMABLE and (each.next_run_at or tx.now) <= tx.now]
        return Analysis(claimed[0] if claimed else row, len(due), bool(claimed))

    return context.db.run(act)


def _plan_shards(tx: Tx, row: Any, size: int) -> None:
    of_batch = SHARDS.c.batch_id == row.id
    if tx.execute(select(SHARDS.c.id).where(of_batch).limit(1)).first() is None:
        for number, part in enumerate(portions(json.loads(row.shot_ids), size)):
            shard = {
                "batch_id": row.id,
                "number": number,
                "shot_ids": json.dumps(part),
                "status": WorkStatus.PENDING,
                "attempts": 0,
                "ask": Ask.FIRST,
                "notes": "[]",
                "model": "",
                "created_at": tx.now,
                "updated_at": tx.now,
            }
            insert_if_absent(tx, SHARDS, shard, "batch_id", "number")
    # Dead shards: a person replays the batch.
    SHARD.move(tx, SHARDS, WorkEvent.RETRY, of_batch, attempts=0, ask=Ask.FIRST, next_run_at=None, updated_at=tx.now)
    tx.execute(update(SHARDS).where(of_batch, SHARDS.c.status == WorkStatus.FAILED).values(next_run_at=None))


def _begin_frames(tx: Tx, batch_id: int) -> None:
    """Mark the batch's frames as running, and count an attempt for frames of shards that have not succeeded."""
    SCREENSHOT.move(
        tx, SHOTS, WorkEvent.CLAIM, SHOTS.c.batch_id == batch_id, updated_at=tx.now, error=None, vlm_next_run_at=None
    )
    repeated = select(SHARDS.c.shot_ids).where(SHARDS.c.batch_id == batch_id, SHARDS.c.status != WorkStatus.SUCCEEDED)
    ids = [shot_id for shot_ids in tx.execute(repeated).scalars() for shot_id in json.loads(shot_ids)]
    running = and_(SHOTS.c.id.in_(ids), SHOTS.c.status == WorkStatus.RUNNING)
    tx.execute(update(SHOTS).where(running).values(vlm_attempts=SHOTS.c.vlm_attempts + 1))


def settle(context: Context, batch_id: int) -> Settled:
    """Settle a batch's analysis once all its shards have ended; exactly one caller does. The returned `Settled.status`
    says how:

    `pending`: all shards succeeded, their merged results are stored, the frames are done, and the batch waits for its
    expansion. `failed`: it waits for a retry. `failed_permanent`: it and its frames are dead; its shards' results stay.
    None: shards are still under way or untried in this attempt, or the batch is not under analysis.
    """
    in_force = screenshots_in_force(context)

    def act(tx: Tx) -> Settled:
        row = batch.lock(tx, batch_id)
        if row is None or row.step != Step.ANALYSE or row.status != WorkStatus.RUNNING:
            return Settled()
        tx.launch(FLOW, Scope.BATCHES)  # another batch may take the place
        shards = tx.execute(select(SHARDS).where(SHARDS.c.batch_id == batch_id).order_by(SHARDS.c.number)).all()
        states = {WorkStatus(shard.status) for shard in shards}
        if states <= {WorkStatus.SUCCEEDED}:
            _merge(in_force, tx, row, shards)
            return Settled(1, status=WorkStatus.PENDING)
        if WorkStatus.RUNNING in states or WorkStatus.PENDING in states:
            return Settled()  # the last shard to end sends the next message
        if any(shard.status == WorkStatus.FAILED and shard.next_run_at is None for shard in shards):
            return Settled()  # this message belongs to the previous attempt: the current one has not tried these shards
        errors = [shard.error for shard in shards if shard.status == WorkStatus.FAILED and shard.error]
        error = UnitError(errors[0] if errors else "a shard failed")
        rules = retry.policy(context.settings)
        if WorkStatus.FAILED_PERMANENT in states or isinstance(decide(error, row.attempts, tx.now, rules), GiveUp):
            _fail(tx, row, WorkEvent.FAIL, shards)
            return Settled(status=WorkStatus.FAILED_PERMANENT)
        # Take the longest wait: a sibling must not shorten a wait that a server asked for.
        due = max((shard.next_run_at for shard in shards if shard.next_run_at is not None), default=None)
        _fail(tx, row, WorkEvent.WAIT, shards, next_run_at=due)
        wait_s = max(0.0, (due - tx.now).total_seconds()) if due else 0.0
        tx.wake_in(FLOW, wait_s)
        return Settled(retry_in_s=wait_s, status=WorkStatus.FAILED)

    return context.db.run(act)


def _merge(rules: ScreenshotSettings, tx: Tx, row: Any, shards: Sequence[Any]) -> None:
    parts = [VlmIndex.model_validate_json(shard.result) for shard in shards]
    index = merge_shards(parts, rules.max_segments_per_batch)
    _keep_evidence(tx, row.id, index)
    expires = tx.now + timedelta(days=rules.retention_days)
    SCREENSHOT.move(
        tx,
        SHOTS,
        WorkEvent.DONE,
        SHOTS.c.batch_id == row.id,
        retention_expires_at=expires,
        updated_at=tx.now,
        error=None,
    )
    notes = [note for shard in shards for note in json.loads(shard.notes)]
    BATCH.move(
        tx,
        BATCHES,
        WorkEvent.STEP_DONE,
        BATCHES.c.id == row.id,
        step=Step.EXPAND,
        attempts=0,
        error=None,
        attempts_before=row.attempts_before + row.attempts - 1,
        index_json=index.model_dump_json(),
        notes=batch.as_notes(notes),
        vlm_ms=_vlm_ms(row, tx.now),
        updated_at=tx.now,
    )
    # The batch has the merged result: drop the shards' copies.
    tx.execute(update(SHARDS).where(SHARDS.c.batch_id == row.id).values(result=None, reply=None))


def _keep_evidence(tx: Tx, batch_id: int, index: VlmIndex) -> None:
    for seen in index.screenshots:
        text = "\n".join([seen.ocr_text, *seen.ui_text_snippets]).casefold()
        named = [name for name in index.entities if name.casefold() in text]
        values = {
            "ocr_text": seen.ocr_text,
            **_app_guess(seen.app_guess),
            "ui_text_snippets": json.dumps(seen.ui_text_snippets, ensure_ascii=False),
            "detected_entities": json.dumps(named, ensure_ascii=False),
            "updated_at": tx.now,
        }
        # Only frames of this batch: a model may describe others.
        in_batch = and_(SHOTS.c.id == seen.screenshot_id, SHOTS.c.batch_id == batch_id)
        tx.execute(update(SHOTS).where(in_batch).values(**values))


def _app_guess(guess: AppGuess | None) -> dict[str, Any]:
    if guess is None or not guess.name:
        return {"app_guess": "", "app_guess_confidence": None}
    return {"app_guess": guess.name[:200], "app_guess_confidence": guess.confidence}


def _fail(tx: Tx, row: Any, event: WorkEvent, shards: Sequence[Any], **values: Any) -> None:
    bad = [shard for shard in shards if shard.status != WorkStatus.SUCCEEDED and shard.error]
    error = "; ".join(f"shard {shard.number + 1}: {shard.error}" for shard in bad)[:MAX_ERROR_CHARS]
    BATCH.move(
        tx,
        BATCHES,
        event,
        BATCHES.c.id == row.id,
        error=error,
        updated_at=tx.now,
        urgency=None,
        rests_since=tx.now,
        vlm_ms=_vlm_ms(row, tx.now),
        **values,
    )
    # Frames follow their batch, so that none stays `running`.
    SCREENSHOT.move(
        tx,
        SHOTS,
        event,
        SHOTS.c.batch_id == row.id,
        error=error or None,
        updated_at=tx.now,
        vlm_next_run_at=values.get("next_run_at"),
    )


def _vlm_ms(row: Any, now: datetime) -> int:
    """Return the ms of all attempts at the analysis, without the waits between them. `updated_at` is still the time of
    the claim."""
    took = max(0, int((now - row.updated_at).total_seconds() * 1000))
    return min(MAX_MS, int(row.vlm_ms) + took)

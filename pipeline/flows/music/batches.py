"""Commands on one batch: retry, promote, remove. Each is one transaction, which locks the batch's run first.

Rule: docs/sources/music.md#batches.
"""

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy import delete, insert, select, update

from pipeline.engine import accounts
from pipeline.engine.accounts import Part
from pipeline.engine.errors import UserError
from pipeline.engine.transaction import Tx
from pipeline.engine.views import view_of
from pipeline.flows.music import runs
from pipeline.flows.music.models import BATCHES, RUNS, SONGS
from pipeline.flows.music.states import (
    BATCH,
    SONG,
    BatchEvent,
    BatchStatus,
    Mode,
    PipelineEvent,
    PipelineState,
    SongEvent,
    SongStatus,
    Step,
    first_step,
)
from pipeline.flows.music.views import BatchView
from pipeline.flows.music.work import result
from pipeline.storage.context import Context


def retry(context: Context, batch_id: int, expected: Sequence[Part] = ()) -> BatchView:
    """Let a failed batch do its step again, with all its attempts and its paid results: in the active run, or in a new
    run without sync. Takes the songs that are still failed.

    `expected`: the estimated cost of a new run, to reserve on the caller's account. Raises `UserError` for an unknown
    batch, one that has not failed, or one without failed songs; `OverCap`.
    """
    new_run = uuid4().hex

    def work(tx: Tx) -> BatchView:
        active = runs.lock_active(tx)
        batch = _locked(tx, batch_id)
        if batch.run_id == new_run:
            return view_of(BatchView, batch)  # an earlier try committed, but its answer was lost
        _check(batch, "retried", BatchStatus.FAILED)
        failed = (SONGS.c.id.in_(json.loads(batch.song_ids)), SONGS.c.batch_id.is_(None))
        run_id = active.id if active else new_run
        songs = update(SONGS).where(*failed, SONGS.c.status == SongStatus.FAILED).values(run_id=run_id)
        ids = list(tx.execute(songs.returning(SONGS.c.id)).scalars())
        if not ids:
            raise UserError(f"no song of batch {batch_id} is failed now", code="illegal_state")
        if active is None:
            _begin_run(tx, run_id, Mode(batch.mode), len(ids))
            accounts.admit(tx, "music", {run_id: expected})
        SONG.move(tx, SONGS, SongEvent.RETRY, SONGS.c.id.in_(ids), batch_id=batch_id, attempts=0, error=None)
        step = Step(batch.step) if batch.analysis or batch.vectors else first_step(Mode(batch.mode))
        again = {"attempts": 0, "releases": 0, "released_at": None, "error": None, "reply": None, "finished_at": None}
        values = {"run_id": run_id, "step": step, "songs": len(ids), "next_run_at": None, "updated_at": tx.now, **again}
        BATCH.move(tx, BATCHES, BatchEvent.RETRY, BATCHES.c.id == batch_id, **values)
        tx.launch("music", run_id)
        return _view(tx, batch_id)

    return context.db.run(work)


def promote(context: Context, batch_id: int) -> BatchView:
    """End the wait of a batch before its next attempt; harmless if it does not wait. Raises `UserError` for an unknown
    batch or one that does not wait for a worker."""

    def work(tx: Tx) -> BatchView:
        batch = _locked(tx, batch_id)
        _check(batch, "promoted", BatchStatus.PENDING, BatchStatus.QUEUED)
        tx.execute(update(BATCHES).where(BATCHES.c.id == batch_id).values(next_run_at=None, updated_at=tx.now))
        tx.launch("music", batch.run_id)
        return _view(tx, batch_id)

    return context.db.run(work)


def remove(context: Context, batch_id: int) -> None:
    """Delete a batch. Its songs keep paid results; songs that waited in it are pending again, for the next run.

    Raises `UserError` for an unknown batch or one that a worker processes.
    """
    removed: list[int] = []  # by an earlier try of the transaction, whose answer may be lost

    def work(tx: Tx) -> None:
        if removed and tx.execute(select(BATCHES.c.id).where(BATCHES.c.id == batch_id)).first() is None:
            return
        batch = _locked(tx, batch_id)
        _check(batch, "removed", *(status for status in BatchStatus if status is not BatchStatus.PROCESSING))
        if batch.status in {BatchStatus.PENDING, BatchStatus.QUEUED}:
            # Without its run, no song counts as left out, for which the run would make another batch.
            tx.execute(update(SONGS).where(SONGS.c.batch_id == batch_id).values(run_id=None))
            result.cancel(tx, [batch_id])
            tx.launch("music", batch.run_id)
        tx.execute(delete(BATCHES).where(BATCHES.c.id == batch_id))
        removed.append(batch_id)

    context.db.run(work)


def _locked(tx: Tx, batch_id: int) -> Any:
    """Lock the batch's run, and return the batch."""
    run_id = tx.execute(select(BATCHES.c.run_id).where(BATCHES.c.id == batch_id)).scalar()
    if run_id is None:
        raise UserError(f"there is no batch {batch_id}", code="unknown_batch")
    runs.lock(tx, run_id)
    return tx.execute(select(BATCHES).where(BATCHES.c.id == batch_id)).one()


def _check(batch: Any, word: str, *allowed: BatchStatus) -> None:
    if batch.status not in allowed:
        states = ", ".join(allowed)
        message = f"batch {batch.id} is {batch.status}: a batch can be {word} in these states: {states}"
        raise UserError(message, code="illegal_state")


def _begin_run(tx: Tx, run_id: str, mode: Mode, songs: int) -> None:
    """Start a run that has all its batches already."""
    begun = {"id": run_id, "status": PipelineState.IDLE, "active": 1, "mode": mode, "synced": True, "enqueued": songs}
    tx.execute(insert(RUNS).values(**begun, created_at=tx.now, updated_at=tx.now))
    runs.move(tx, runs.lock(tx, run_id), PipelineEvent.START_WITHOUT_SYNC)
    runs.move(tx, runs.lock(tx, run_id), PipelineEvent.ENQUEUE_COMPLETE, all_enqueued=True)


def _view(tx: Tx, batch_id: int) -> BatchView:
    return view_of(BatchView, tx.execute(select(BATCHES).where(BATCHES.c.id == batch_id)).one())

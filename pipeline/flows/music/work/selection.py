"""Selects the songs of a run, and puts them into batches. Rules: docs/sources/music.md#batches."""

import json
import time
from collections.abc import Sequence

import structlog
from sqlalchemy import ColumnElement, and_, insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine.transaction import Tx
from pipeline.flows.music import runs
from pipeline.flows.music.live_settings import batch_size
from pipeline.flows.music.models import BATCHES, RUNS, SONGS
from pipeline.flows.music.states import BatchStatus, Mode, PipelineEvent, PipelineState, SongStatus, first_step
from pipeline.flows.music.vectors import vector_space
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PORTION = 50
"""Batches that one transaction creates."""


def wanted_songs(mode: Mode, space: str) -> ColumnElement[bool]:
    """Return the condition on songs that a run of this mode takes up. `space`: the space of its vectors."""
    free = and_(SONGS.c.missing_since.is_(None), SONGS.c.batch_id.is_(None))
    match mode:
        case Mode.FULL:
            return and_(free, SONGS.c.status == SongStatus.PENDING)
        case Mode.METADATA:
            return and_(free, SONGS.c.status == SongStatus.PENDING, SONGS.c.analysis_json.is_(None))
        case Mode.EMBEDDING:
            return and_(
                free, SONGS.c.status != SongStatus.PROCESSING, SONGS.c.vector_text != "", SONGS.c.vector_model != space
            )


def needs_vector_only(mode: Mode) -> ColumnElement[bool]:
    """Return the condition on songs whose metadata an earlier run has paid for; in mode `metadata`, no song matches."""
    return SONGS.c.vector_text != "" if mode is not Mode.METADATA else SONGS.c.id.is_(None)


def left_out_songs(session: Session, run_id: str, limit: int) -> list[int]:
    """Return up to `limit` ids of songs of the run that are pending again because replies left them out."""
    pending = and_(
        SONGS.c.run_id == run_id,
        SONGS.c.status == SongStatus.PENDING,
        SONGS.c.batch_id.is_(None),
        SONGS.c.missing_since.is_(None),
    )
    return list(session.execute(select(SONGS.c.id).where(pending).order_by(SONGS.c.id).limit(limit)).scalars())


def make_batches(tx: Tx, run_id: str, songs: Sequence[int], mode: Mode, size: int) -> None:
    """Put songs (ids) into new batches of the run, `size` in each, in the caller's transaction."""
    for start in range(0, len(songs), size):
        members = songs[start : start + size]
        values = {
            "correlation_id": f"batch_{time.time_ns() // 1000}",
            "run_id": run_id,
            "mode": mode,
            "step": first_step(mode),
            "status": BatchStatus.PENDING,
            "song_ids": json.dumps(members),
            "songs": len(members),
            "created_at": tx.now,
            "updated_at": tx.now,
        }
        batch_id = tx.execute(insert(BATCHES).values(**values).returning(BATCHES.c.id)).scalar_one()
        # A song in a batch never enters another, so that two starts never call for it twice.
        free = and_(SONGS.c.id.in_(members), SONGS.c.batch_id.is_(None))
        tx.execute(update(SONGS).where(free).values(batch_id=batch_id, run_id=run_id, updated_at=tx.now))


def enqueue(context: Context, run_id: str) -> None:
    """Put all songs that the run takes up, at most its limit, into batches, and move it to RUNNING. Safe to repeat.

    Each portion is one short transaction.
    """
    while _enqueue_portion(context, run_id):
        pass


def _enqueue_portion(context: Context, run_id: str) -> bool:
    """Enqueue a portion in one transaction, and return whether more may follow."""
    size = batch_size(context)
    space = vector_space(context.settings)

    def work(tx: Tx) -> bool:
        tx.launch("music", run_id)
        run = runs.lock(tx, run_id)
        if run is None or run.status != PipelineState.ENQUEUING:
            return False
        mode = Mode(run.mode)
        remaining = size * PORTION if run.song_limit is None else min(size * PORTION, run.song_limit - run.enqueued)
        count = 0
        for batch_mode, which in ((Mode.EMBEDDING, needs_vector_only(mode)), (mode, ~needs_vector_only(mode))):
            wanted = select(SONGS.c.id).where(wanted_songs(mode, space), which)
            wanted = wanted.order_by(SONGS.c.id).limit(remaining - count).with_for_update(skip_locked=True)
            songs = list(tx.execute(wanted).scalars()) if remaining > count else []
            make_batches(tx, run_id, songs, batch_mode, size)
            count += len(songs)
        if count:
            total = run.enqueued + count
            tx.execute(update(RUNS).where(RUNS.c.id == run_id).values(enqueued=total, updated_at=tx.now))
            return True
        runs.move(tx, run, PipelineEvent.ENQUEUE_COMPLETE, all_enqueued=True)
        log.info("music.enqueued", run=run_id, songs=run.enqueued)
        return False

    return context.db.run(work)

"""Pending songs become batches. Source 002, section 2.D. Portion by portion: each is one short transaction."""

from datetime import UTC, datetime

import structlog
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pipeline.flows.music import runs
from pipeline.flows.music.live import batch_size
from pipeline.flows.music.models import RUNS, SONGS
from pipeline.flows.music.states import Mode, PipelineEvent, PipelineState
from pipeline.flows.music.vectors import space_of
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PORTION = 50
"""Batches made in one transaction."""


def enqueue(context: Context, run_id: str) -> bool:
    """Put all that the run is to do into batches; whether the run goes on to RUNNING now. Safe to repeat."""
    while (done := _portion(context, run_id)) is False:
        pass
    return bool(done)


def _portion(context: Context, run_id: str) -> bool | None:
    """One transaction: False if there may be more, True if the run moved on, None if it does not enqueue (any more)."""
    size = batch_size(context)
    space = space_of(context.settings)

    def work(session: Session) -> bool | None:
        run = runs.lock(session, run_id)
        if run is None or run.status != PipelineState.ENQUEUING:
            return None
        now = datetime.now(UTC)
        mode = Mode(run.mode)
        left = size * PORTION if run.song_limit is None else min(size * PORTION, run.song_limit - run.enqueued)
        taken = 0
        for batch_mode, which in ((Mode.EMBEDDING, runs.only_vectors(mode)), (mode, ~runs.only_vectors(mode))):
            if mode is Mode.EMBEDDING and batch_mode is mode and taken:
                break
            wanted = select(SONGS.c.id).where(runs.waiting_songs(mode, space), which)
            wanted = wanted.order_by(SONGS.c.id).limit(left - taken).with_for_update(skip_locked=True)
            songs = list(session.execute(wanted)) if left > taken else []
            runs.make_batches(session, run, songs, batch_mode, size, now)
            taken += len(songs)
        if taken:
            total = run.enqueued + taken
            session.execute(update(RUNS).where(RUNS.c.id == run_id).values(enqueued=total, updated_at=now))
            return False
        runs.move(session, run, PipelineEvent.ENQUEUE_COMPLETE, now, all_enqueued=True)
        log.info("music.enqueued", run=run_id, songs=run.enqueued)
        return True

    return context.db.run(work)

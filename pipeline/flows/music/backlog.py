"""The flow's backlog: the waiting sync and batches, and the latest failures."""

from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy import select

from pipeline.engine.backlog import Failure, Waiting
from pipeline.engine.backlog import waiting as counted
from pipeline.flows.music.models import BATCHES, RUNS
from pipeline.flows.music.routes import CONTROL, current_routes
from pipeline.flows.music.states import BatchStatus, Mode, PipelineState, Step
from pipeline.flows.music.work.batch import BATCH_WORK
from pipeline.flows.music.work.sync import SYNC_WORK
from pipeline.storage.context import Context


def waiting(context: Context) -> Iterator[Waiting]:
    """Yield counts: the active run's sync if it waits, and its waiting batches by the queue of their next step."""
    routes, waits = current_routes(context), list[Waiting]()
    with context.db.read() as session:
        run = session.execute(select(RUNS.c.id, RUNS.c.mode, RUNS.c.status).where(RUNS.c.active == 1)).one_or_none()
        if run is None:
            return
        syncs = counted(session, SYNC_WORK, "music_runs", RUNS.c.id == run.id)
        waits += [replace(wait, queue=CONTROL) for _, wait in syncs]
        of_run = BATCHES.c.run_id == run.id
        for step, wait in counted(session, BATCH_WORK, "song_batches", of_run, by=BATCHES.c.step):
            waits.append(replace(wait, queue=routes.queue(Mode(run.mode), Step(step))))
    if run.status == PipelineState.PAUSED:
        yield from (replace(wait, queue="", why="the run is paused", is_paused=True) for wait in waits)
    else:
        yield from waits


def failures(context: Context, limit: int) -> list[Failure]:
    """Return at most `limit` failed batches, the last changed first."""
    c = BATCHES.c
    failed = select(c.id, c.songs, c.error, c.updated_at).where(c.status == BatchStatus.FAILED)
    with context.db.read() as session:
        rows = session.execute(failed.order_by(c.updated_at.desc(), c.id.desc()).limit(limit)).all()
    return [
        Failure(
            "music",
            "song_batch",
            str(row.id),
            f"Batch {row.id} of {row.songs} songs",
            row.error or "it failed",
            row.updated_at,
        )
        for row in rows
    ]

"""Derives due work from the pipeline's rows. Starts, resumes, retries and recovery all launch by this plan."""

from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import select

from pipeline.engine.claims import is_due
from pipeline.engine.transaction import Tx
from pipeline.flows.music import live_settings, runs
from pipeline.flows.music.models import BATCHES
from pipeline.flows.music.routes import Routes, current_routes
from pipeline.flows.music.states import BATCH, BatchEvent, BatchStatus, Mode, PipelineEvent, PipelineState, Step
from pipeline.flows.music.work.batch import BATCH_WORK
from pipeline.flows.music.work.selection import left_out_songs, make_batches
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
MAX_LEFT_OUT_SONGS = 1000
"""The most left-out songs that one transaction puts into batches."""
PAID_FIRST = (Step.SAVE, Step.EMBED, Step.REPAIR, Step.METADATA)
"""The order in which waiting batches start: batches with paid results come first."""


@dataclass(frozen=True)
class BatchLaunch:
    """A batch that waits for a message in `queue` for its `step`."""

    id: int
    mode: Mode
    step: Step
    queue: str

    @classmethod
    def of(cls, row: Any, routes: Routes) -> "BatchLaunch":
        """Return the message that a batch's row asks for, with its queue by these routes."""
        mode, step = Mode(row.mode), Step(row.step)
        return cls(row.id, mode, step, routes.queue(mode, step))


@dataclass(frozen=True)
class Plan:
    """The messages that the rows ask for, sent or not. `sync`, `enqueue`: the run's own stages."""

    sync: bool = False
    enqueue: bool = False
    batches: list[BatchLaunch] = field(default_factory=list)


def plan(context: Context, run_id: str) -> Plan:
    """Queue as many pending batches as may be under way, and return the messages that the run's rows ask for: its sync,
    the making of batches, or the batches' steps.

    Sends none itself. Ends a run without further work. Empty for a run that is unknown, paused or ended.
    """
    width, size = live_settings.concurrency(context), live_settings.batch_size(context)
    routes = current_routes(context)

    def work(tx: Tx) -> Plan:
        run = runs.lock(tx, run_id)
        if run is None:
            return Plan()
        match run.status:
            case PipelineState.SYNCING:
                return Plan(sync=run.claim_id is None and (not run.next_run_at or run.next_run_at <= tx.now))
            case PipelineState.ENQUEUING:
                return Plan(enqueue=True)
            case PipelineState.RUNNING | PipelineState.BREAKER:
                if _end_if_done(tx, run, size):
                    return Plan()
                _start_batches(tx, run, width)
                queued = select(BATCHES).where(BATCHES.c.run_id == run.id, BATCHES.c.status == BatchStatus.QUEUED)
                rows = tx.execute(queued.order_by(BATCHES.c.id))
                return Plan(batches=[BatchLaunch.of(row, routes) for row in rows])
        return Plan()

    return context.db.run(work)


def _end_if_done(tx: Tx, run: Any, size: int) -> bool:
    """End the run if its batches have ended and no song was left out; return whether it ended.

    Otherwise put left-out songs into new batches.
    """
    if runs.has_open(tx, run.id):
        return False
    songs = left_out_songs(tx, run.id, MAX_LEFT_OUT_SONGS)
    if songs:
        make_batches(tx, run.id, songs, Mode(run.mode), size)
        return False
    runs.end(tx, run, PipelineEvent.COMPLETE, "completed")
    log.info("music.run_completed", run=run.id)
    return True


def _start_batches(tx: Tx, run: Any, width: int) -> None:
    """Queue as many pending batches as may be under way."""
    room = width - runs.count_under_way(tx, run.id)
    # One query for each step reads the claimable index in order, even with many waiting batches.
    waiting = (BATCHES.c.run_id == run.id, BATCH_WORK.claimable, BATCHES.c.status == BatchStatus.PENDING)
    chosen: list[int] = []
    for step in PAID_FIRST:
        if room > len(chosen):
            due_ids = select(BATCHES.c.id).where(*waiting, BATCHES.c.step == step, is_due(BATCHES, tx.now))
            chosen += tx.execute(due_ids.order_by(BATCHES.c.id).limit(room - len(chosen))).scalars()
    if chosen:
        is_chosen = BATCHES.c.id.in_(chosen)
        BATCH.move(tx, BATCHES, BatchEvent.LAUNCH, is_chosen, next_run_at=None, updated_at=tx.now)

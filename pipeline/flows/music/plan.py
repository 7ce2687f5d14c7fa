"""What the pipeline's rows ask for now. Start, resume, retry and recovery all end here."""

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
"""Songs that replies left out and that are put into batches at once."""
PAID_FIRST = (Step.SAVE, Step.EMBED, Step.REPAIR, Step.METADATA)
"""In which order waiting batches take their turn: those that something was paid for come first."""


@dataclass(frozen=True)
class BatchLaunch:
    """A batch that waits for a message, which goes on from `step`, in `queue`."""

    id: int
    mode: Mode
    step: Step
    queue: str

    @classmethod
    def of(cls, row: Any, routes: Routes) -> "BatchLaunch":
        """The batch from its step on, by the routes that are open now."""
        mode, step = Mode(row.mode), Step(row.step)
        return cls(row.id, mode, step, routes.queue(mode, step))


@dataclass(frozen=True)
class Plan:
    """Which messages are wanted, be they on their way or not. `sync`, `enqueue`: the run's own stages."""

    sync: bool = False
    enqueue: bool = False
    batches: list[BatchLaunch] = field(default_factory=list)


def plan(context: Context, run_id: str) -> Plan:
    """What the run wants now: as many batches as may be under way take their turn. Ends a run that has nothing left."""
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
                _begin_batches(tx, run, width)
                queued = select(BATCHES).where(BATCHES.c.run_id == run.id, BATCHES.c.status == BatchStatus.QUEUED)
                rows = tx.execute(queued.order_by(BATCHES.c.id))
                return Plan(batches=[BatchLaunch.of(row, routes) for row in rows])
        return Plan()

    return context.db.run(work)


def _end_if_done(tx: Tx, run: Any, size: int) -> bool:
    """End the run if all its batches have ended; songs that replies left out make new ones. Whether it ended."""
    if runs.has_open(tx, run.id):
        return False
    songs = left_out_songs(tx, run.id, MAX_LEFT_OUT_SONGS)
    if songs:
        make_batches(tx, run.id, songs, Mode(run.mode), size)
        return False
    runs.end(tx, run, PipelineEvent.COMPLETE, "completed")
    log.info("music.run_completed", run=run.id)
    return True


def _begin_batches(tx: Tx, run: Any, width: int) -> None:
    """Let pending batches take their turn, as many as may be under way."""
    room = width - runs.count_under_way(tx, run.id)
    # Step by step: so the index of what can be claimed has them in this order, however many wait.
    waiting = (BATCHES.c.run_id == run.id, BATCH_WORK.claimable, BATCHES.c.status == BatchStatus.PENDING)
    chosen: list[int] = []
    for step in PAID_FIRST:
        if room > len(chosen):
            here = select(BATCHES.c.id).where(*waiting, BATCHES.c.step == step, is_due(BATCHES, tx.now))
            chosen += tx.execute(here.order_by(BATCHES.c.id).limit(room - len(chosen))).scalars()
    if chosen:
        mine = BATCHES.c.id.in_(chosen)
        BATCH.move(tx, BATCHES, BatchEvent.LAUNCH, mine, next_run_at=None, updated_at=tx.now)

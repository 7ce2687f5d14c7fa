"""What the pipeline's rows ask for now. Start, resume, retry and recovery all end here."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from redis import RedisError
from sqlalchemy import and_, case, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import is_due
from pipeline.engine.metrics import queue_depths
from pipeline.engine.relaunch import RELAUNCH_AFTER_S, again, wait_s
from pipeline.flows.music import live_settings, runs
from pipeline.flows.music.models import BATCHES, RUNS
from pipeline.flows.music.routes import Routes, current_routes
from pipeline.flows.music.states import BATCH, BatchEvent, BatchStatus, Mode, PipelineEvent, PipelineState, Step
from pipeline.flows.music.work.selection import left_out_songs, make_batches
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
MAX_LEFT_OUT_SONGS = 1000
"""Songs that replies left out and that are put into batches at once."""


@dataclass(frozen=True)
class BatchLaunch:
    """A batch whose chain should be sent, from `step` on, to `queue`."""

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
    """What to send. `sync`, `enqueue`: the run's own stages. `ended`: the run has just ended."""

    sync: bool = False
    enqueue: bool = False
    batches: list[BatchLaunch] = field(default_factory=list)
    ended: bool = False


def plan(context: Context, run_id: str) -> Plan:
    """What the run needs now; its rows note that it was sent. Ends a run that has nothing left to do."""
    width, size = live_settings.concurrency(context), live_settings.batch_size(context)
    routes = current_routes(context)
    try:
        depths = queue_depths(context.redis, routes.queues) if context.online else {}
    except RedisError:
        depths = {}  # nobody knows

    def work(session: Session) -> Plan:
        run = runs.lock(session, run_id)
        if run is None:
            return Plan()
        now = datetime.now(UTC)
        match run.status:
            case PipelineState.SYNCING if run.claim_id is None and (not run.next_run_at or run.next_run_at <= now):
                return Plan(sync=_note_stage(session, run, now))
            case PipelineState.ENQUEUING:
                return Plan(enqueue=_note_stage(session, run, now))
            case PipelineState.RUNNING | PipelineState.BREAKER:
                if _end_if_done(session, run, size, now):
                    return Plan(ended=True)
                resent = _lost_batches(session, run, routes, depths, now)
                return Plan(batches=[*resent, *_next_batches(session, run, routes, width, now)])
        return Plan()

    return context.db.run(work)


def _note_stage(session: Session, run: Any, now: datetime) -> bool:
    """Whether to send the run's own stage; the waits between two messages grow while nothing moves it."""
    if run.launch_due_at is not None and run.launch_due_at > now:
        return False
    due = now + timedelta(seconds=wait_s(run.launches))
    session.execute(update(RUNS).where(RUNS.c.id == run.id).values(launches=run.launches + 1, launch_due_at=due))
    return True


def _end_if_done(session: Session, run: Any, size: int, now: datetime) -> bool:
    """End the run if all its batches have ended; songs that replies left out make new ones. Whether it ended."""
    if runs.count_open(session, run.id):
        return False
    songs = left_out_songs(session, run.id, MAX_LEFT_OUT_SONGS)
    if songs:
        make_batches(session, run.id, songs, Mode(run.mode), size, now)
        return False
    runs.end(session, run, PipelineEvent.COMPLETE, "completed", now)
    log.info("music.run_completed", run=run.id)
    return True


def _lost_batches(
    session: Session, run: Any, routes: Routes, depths: dict[str, int], now: datetime
) -> list[BatchLaunch]:
    """Batches whose message seems lost: it is long due, and its queue is empty or has had it for very long.

    Also those whose message waits behind an open breaker while another provider stands in.
    """
    due = or_(BATCHES.c.launch_due_at.is_(None), BATCHES.c.launch_due_at <= now, BATCHES.c.queue.in_(list(routes.shut)))
    query = select(BATCHES).where(BATCHES.c.run_id == run.id, BATCHES.c.status == BatchStatus.QUEUED, due)
    found = []
    for row in session.execute(query.limit(500)):
        launch = BatchLaunch.of(row, routes)
        moves = routes.should_move(row.queue, launch.mode, launch.step)
        if not moves and row.launch_due_at is not None and row.launch_due_at > now:
            continue
        waits = not moves and depths.get(launch.queue, 0) > 0
        send, later = again(row.launches, now - row.updated_at, waits=waits)
        changed = {"launches": BATCHES.c.launches + int(send), "launch_due_at": now + later}
        changed |= {"queue": launch.queue} if send else {}
        session.execute(update(BATCHES).where(BATCHES.c.id == row.id).values(**changed))
        found += [launch] if send else []
    return found


def _next_batches(session: Session, run: Any, routes: Routes, width: int, now: datetime) -> list[BatchLaunch]:
    """Pending batches, as many as may begin now: those that something was paid for come first."""
    busy = runs.count_open(session, run.id, BatchStatus.QUEUED, BatchStatus.PROCESSING)
    if busy >= width:
        return []
    waiting = and_(BATCHES.c.run_id == run.id, BATCHES.c.status == BatchStatus.PENDING, is_due(BATCHES, now))
    unpaid = case((BATCHES.c.step == Step.METADATA, 1), else_=0)
    chosen = session.execute(select(BATCHES.c.id).where(waiting).order_by(unpaid, BATCHES.c.id).limit(width - busy))
    rows = BATCH.move_returning(
        session, BATCHES, BatchEvent.LAUNCH, BATCHES.c.id.in_(list(chosen.scalars())), next_run_at=None, launches=1,
        launch_due_at=now + timedelta(seconds=RELAUNCH_AFTER_S), updated_at=now,
    )  # fmt: skip
    found = [BatchLaunch.of(row, routes) for row in sorted(rows, key=lambda row: row.id)]
    for launch in found:
        session.execute(update(BATCHES).where(BATCHES.c.id == launch.id).values(queue=launch.queue))
    return found

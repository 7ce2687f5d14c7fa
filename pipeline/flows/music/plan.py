"""What is to be done for the pipeline now, derived from its rows: start, resume, retry and recovery all end here."""

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
from pipeline.flows.music import live, runs
from pipeline.flows.music.models import BATCHES, RUNS
from pipeline.flows.music.routes import Routes, routes
from pipeline.flows.music.states import BATCH, BatchEvent, BatchStatus, Mode, PipelineEvent, PipelineState, Step
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
MAX_LEFT_OVER = 1000


@dataclass(frozen=True)
class BatchLaunch:
    """A batch whose chain is to be sent, from `step` on, which goes to `queue`."""

    id: int
    mode: Mode
    step: Step
    queue: str


@dataclass(frozen=True)
class Plan:
    """What to send. `sync`, `enqueue`: the run's own stages."""

    sync: bool = False
    enqueue: bool = False
    batches: list[BatchLaunch] = field(default_factory=list)
    ended: bool = False


def plan(context: Context, run_id: str) -> Plan:
    """What the run needs now, and a note on the rows that it was sent. Ends a run that has nothing left to do."""
    width, size = live.concurrency(context), live.batch_size(context)
    now_open = routes(context)
    waiting = _depths(context, now_open.queues)

    def work(session: Session) -> Plan:
        run = runs.lock(session, run_id)
        if run is None:
            return Plan()
        now = datetime.now(UTC)
        match run.status:
            case PipelineState.SYNCING if run.claim_id is None and (not run.next_run_at or run.next_run_at <= now):
                return Plan(sync=_note(session, run, now))
            case PipelineState.ENQUEUING:
                return Plan(enqueue=_note(session, run, now))
            case PipelineState.RUNNING | PipelineState.BREAKER:
                if _settle(session, run, size, now):
                    return Plan(ended=True)
                again = _overdue(session, run, now_open, waiting, now)
                return Plan(batches=[*again, *_next(session, run, now_open, width, now)])
        return Plan()

    return context.db.run(work)


def _depths(context: Context, names: list[str]) -> dict[str, int]:
    """Messages in these queues; none where nobody knows."""
    try:
        return queue_depths(context.redis, names) if context.online else {}
    except RedisError:
        return {}


def _note(session: Session, run: Any, now: datetime) -> bool:
    """Whether the run's own stage is to be sent, which is spaced out more and more while nothing moves it."""
    if run.launch_due_at is not None and run.launch_due_at > now:
        return False
    due = now + timedelta(seconds=wait_s(run.launches))
    noted = update(RUNS).where(RUNS.c.id == run.id).values(launches=run.launches + 1, launch_due_at=due)
    session.execute(noted)
    return True


def _settle(session: Session, run: Any, size: int, now: datetime) -> bool:
    """End the run if all its batches have; songs that replies left out make new ones. True if it ended."""
    if runs.count_open(session, run.id):
        return False
    songs = runs.left_over(session, run, MAX_LEFT_OVER)
    if songs:
        runs.make_batches(session, run, songs, Mode(run.mode), size, now)
        return False
    runs.end(session, run, PipelineEvent.COMPLETE, "completed", now)
    log.info("music.run_completed", run=run.id)
    return True


def _overdue(session: Session, run: Any, open_to: Routes, depths: dict[str, int], now: datetime) -> list[BatchLaunch]:
    """Batches whose message seems lost: it is long due, and their queue is empty, or has been asked for very long.

    Those, too, whose message waits behind an open breaker while another provider stands in.
    """
    due = or_(
        BATCHES.c.launch_due_at.is_(None), BATCHES.c.launch_due_at <= now, BATCHES.c.queue.in_(list(open_to.shut))
    )
    query = select(BATCHES).where(BATCHES.c.run_id == run.id, BATCHES.c.status == BatchStatus.QUEUED, due)
    found = []
    for row in session.execute(query.limit(500)):
        mode, step = Mode(row.mode), Step(row.step)
        launch = BatchLaunch(row.id, mode, step, open_to.queue(mode, step))
        astray = open_to.astray(row.queue, mode, step)
        if not astray and row.launch_due_at is not None and row.launch_due_at > now:
            continue
        waits = not astray and depths.get(launch.queue, 0) > 0
        asked, later = again(row.launches, now - row.updated_at, waits=waits)
        changed = {"launches": BATCHES.c.launches + int(asked), "launch_due_at": now + later}
        changed |= {"queue": launch.queue} if asked else {}
        session.execute(update(BATCHES).where(BATCHES.c.id == row.id).values(**changed))
        found += [launch] if asked else []
    return found


def _next(session: Session, run: Any, open_to: Routes, width: int, now: datetime) -> list[BatchLaunch]:
    """Give free lanes to the next batches: those that something was paid for first."""
    busy = runs.count_open(session, run.id, BatchStatus.QUEUED, BatchStatus.PROCESSING)
    if busy >= width:
        return []
    waiting = and_(BATCHES.c.run_id == run.id, BATCHES.c.status == BatchStatus.PENDING, is_due(BATCHES, now))
    fresh = case((BATCHES.c.step == Step.METADATA, 1), else_=0)
    chosen = session.execute(select(BATCHES.c.id).where(waiting).order_by(fresh, BATCHES.c.id).limit(width - busy))
    rows = BATCH.move_returning(
        session, BATCHES, BatchEvent.LAUNCH, BATCHES.c.id.in_(list(chosen.scalars())), next_run_at=None, launches=1,
        launch_due_at=now + timedelta(seconds=RELAUNCH_AFTER_S), updated_at=now,
    )  # fmt: skip
    found = []
    for row in sorted(rows, key=lambda row: row.id):
        mode, step = Mode(row.mode), Step(row.step)
        found.append(BatchLaunch(row.id, mode, step, open_to.queue(mode, step)))
        session.execute(update(BATCHES).where(BATCHES.c.id == row.id).values(queue=found[-1].queue))
    return found

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
from pipeline.music import limits, runs
from pipeline.music.batches import RELAUNCH_AFTER_S
from pipeline.music.models import BATCHES, RUNS
from pipeline.music.states import (
    BATCH,
    BatchEvent,
    BatchStatus,
    Mode,
    PipelineEvent,
    PipelineState,
    Step,
)
from pipeline.providers.gates import EMBEDDING_ONLY, METADATA_GENERATION, METADATA_ONLY
from pipeline.settings import Settings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
CONTROL = "control"
"""Work that takes a moment and calls nobody."""
MAX_RELAUNCH_S = 600
MAX_LEFT_OVER = 1000


@dataclass(frozen=True)
class BatchLaunch:
    """A batch whose chain is to be sent, from `step` on."""

    id: int
    mode: Mode
    step: Step


@dataclass(frozen=True)
class Plan:
    """What to send. `sync`, `enqueue`: the run's own stages."""

    sync: bool = False
    enqueue: bool = False
    batches: list[BatchLaunch] = field(default_factory=list)
    ended: bool = False


def queue_of(settings: Settings, mode: Mode, step: Step) -> str:
    """The queue of a step: source 002, section 1. Vectors without a provider are made where there is no gate."""
    match step:
        case Step.METADATA | Step.REPAIR:
            return METADATA_ONLY if mode is Mode.METADATA else METADATA_GENERATION
        case Step.EMBED:
            return EMBEDDING_ONLY if settings.music.embeddings_provider else CONTROL
        case Step.SAVE:
            return CONTROL


def plan(context: Context, run_id: str) -> Plan:
    """What the run needs now, and a note on the rows that it was sent. Ends a run that has nothing left to do."""
    width, size = limits.concurrency(context), limits.batch_size(context)
    waiting = _depths(context)

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
                again = _overdue(session, run, context.settings, waiting, now)
                return Plan(batches=[*again, *_next(session, run, width, now)])
        return Plan()

    return context.db.run(work)


def _depths(context: Context) -> dict[str, int]:
    """Messages in the flow's queues; none where nobody knows."""
    names = [CONTROL, METADATA_GENERATION, METADATA_ONLY, EMBEDDING_ONLY]
    try:
        return queue_depths(context.redis, names) if context.online else {}
    except RedisError:
        return {}


def _note(session: Session, run: Any, now: datetime) -> bool:
    """Whether the run's own stage is to be sent, which is spaced out more and more while nothing moves it."""
    if run.launch_due_at is not None and run.launch_due_at > now:
        return False
    due = now + timedelta(seconds=_wait_s(run.launches))
    noted = update(RUNS).where(RUNS.c.id == run.id).values(launches=run.launches + 1, launch_due_at=due)
    session.execute(noted)
    return True


def _wait_s(launches: int) -> int:
    return int(min(RELAUNCH_AFTER_S * 2 ** min(launches, 10), MAX_RELAUNCH_S))


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


def _overdue(
    session: Session, run: Any, settings: Settings, depths: dict[str, int], now: datetime
) -> list[BatchLaunch]:
    """Batches whose message seems lost: it is long due, and their queue is empty, or has been asked for very long."""
    due = or_(BATCHES.c.launch_due_at.is_(None), BATCHES.c.launch_due_at <= now)
    query = select(BATCHES).where(BATCHES.c.run_id == run.id, BATCHES.c.status == BatchStatus.QUEUED, due)
    found = []
    for row in session.execute(query.limit(500)):
        launch = BatchLaunch(row.id, Mode(row.mode), Step(row.step))
        waits = depths.get(queue_of(settings, launch.mode, launch.step), 0) > 0
        later = now + timedelta(seconds=RELAUNCH_AFTER_S if waits else _wait_s(row.launches))
        asked = 0 if waits else 1
        if waits and now - row.updated_at > timedelta(seconds=MAX_RELAUNCH_S):
            asked, later = 1, now + timedelta(seconds=MAX_RELAUNCH_S)
        session.execute(
            update(BATCHES)
            .where(BATCHES.c.id == row.id)
            .values(launches=BATCHES.c.launches + asked, launch_due_at=later)
        )
        found += [launch] if asked else []
    return found


def _next(session: Session, run: Any, width: int, now: datetime) -> list[BatchLaunch]:
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
    return [BatchLaunch(row.id, Mode(row.mode), Step(row.step)) for row in sorted(rows, key=lambda row: row.id)]

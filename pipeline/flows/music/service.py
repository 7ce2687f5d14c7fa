"""Commands on the pipeline. Each is one transaction, whose messages are launched after the commit.

Rules: docs/sources/music.md#pipeline. The launch derives the messages from the rows: see `plan`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import structlog
from sqlalchemy import and_, func, insert, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from pipeline.engine import accounts
from pipeline.engine.accounts import Part
from pipeline.engine.claims import FREE
from pipeline.engine.errors import UserError
from pipeline.engine.transaction import Tx
from pipeline.engine.views import view_of
from pipeline.flows.music import runs
from pipeline.flows.music.models import BATCHES, RUNS, SONGS
from pipeline.flows.music.routes import fallback_of
from pipeline.flows.music.states import (
    BATCH,
    OPEN,
    SONG,
    BatchEvent,
    BatchStatus,
    Mode,
    PipelineEvent,
    PipelineState,
    SongEvent,
)
from pipeline.flows.music.views import RunView
from pipeline.flows.music.work import result
from pipeline.providers import registry
from pipeline.settings import Settings
from pipeline.storage import retention
from pipeline.storage.context import Context
from pipeline.storage.retention import Retention, Rule

log = structlog.get_logger(__name__)


class AlreadyRunning(UserError):
    """A run is active: the pipeline runs one at a time."""

    def __init__(self, run_id: str, state: str) -> None:
        super().__init__(
            f"the music pipeline is {state} (run {run_id}): wait for it, or `penstock music stop`",
            code="already_running",
        )


@dataclass(frozen=True)
class StartOptions:
    """Options of a run. `failed`: retry failed songs. Rule: docs/sources/music.md#status."""

    mode: Mode = Mode.FULL
    skip_sync: bool = False
    limit: int | None = None
    failed: bool = False


def check(settings: Settings, options: StartOptions) -> None:
    """Raise `UserError` now for options with which the run would fail later."""
    music = settings.music
    if options.limit is not None and options.limit < 1:
        raise UserError("the limit must be at least 1 song", code="bad_limit")
    if options.mode is not Mode.EMBEDDING:
        if not music.provider:
            raise UserError(_without_provider(settings), code="no_provider")
        registry.check(settings, music.provider, music.model)
        if fallback_of(settings):
            registry.check(settings, fallback_of(settings))
    if music.embeddings_provider:
        registry.check(settings, music.embeddings_provider, music.embeddings_model)
    if not options.skip_sync and not (music.server_url or music.folder):
        message = "no music library is named: set PENSTOCK_MUSIC__SERVER_URL or PENSTOCK_MUSIC__FOLDER, or --skip-sync"
        raise UserError(message, code="no_library")


def _without_provider(settings: Settings) -> str:
    """Return a message that says what works without a provider, and how to configure one."""
    if settings.providers:
        remedy = f"set PENSTOCK_MUSIC__PROVIDER to one of your providers ({', '.join(sorted(settings.providers))})"
    else:
        remedy = (
            "name one, also one on this machine: PENSTOCK_PROVIDERS__OLLAMA__BASE_URL=http://localhost:11434/v1, "
            "PENSTOCK_PROVIDERS__OLLAMA__MODEL=… and PENSTOCK_MUSIC__PROVIDER=ollama"
        )
    return (
        "no provider writes metadata. Without one, `penstock music sync` reads the songs, and `penstock music search` "
        f"finds them by title, artist, album, genre and year. For descriptions, tags and moods, {remedy}"
    )


def start(context: Context, options: StartOptions, expected: Sequence[Part] = ()) -> RunView:
    """Start a run, which workers then do. Raises `AlreadyRunning` if one is active, even if paused, `UserError` for bad
    options, `OverCap`.

    `expected`: the estimated cost to reserve on the caller's account.
    """
    check(context.settings, options)
    run_id = uuid4().hex

    def work(tx: Tx) -> RunView:
        active = runs.lock_active(tx)
        if active is not None and active.id == run_id:
            return _view(tx, run_id)  # an earlier try committed, but its answer was lost
        if active is not None:
            raise AlreadyRunning(active.id, active.status)
        tx.execute(
            insert(RUNS).values(
                id=run_id,
                status=PipelineState.IDLE,
                active=1,
                mode=options.mode,
                song_limit=options.limit,
                synced=options.skip_sync,
                created_at=tx.now,
                updated_at=tx.now,
            )
        )
        if options.failed:
            SONG.move(tx, SONGS, SongEvent.RETRY, attempts=0, error=None, updated_at=tx.now)
        event = PipelineEvent.START_WITHOUT_SYNC if options.skip_sync else PipelineEvent.START
        runs.move(tx, runs.lock(tx, run_id), event)
        accounts.admit(tx, "music", {run_id: expected})
        tx.launch("music", run_id)
        return _view(tx, run_id)

    try:
        view = context.db.run(work)
    except IntegrityError:
        # Another start was faster.
        with context.db.read() as session:
            other = session.execute(select(RUNS.c.id, RUNS.c.status).where(RUNS.c.active == 1)).first()
        raise AlreadyRunning(*(other or ("that was started just now", "starting"))) from None
    log.info("music.started", run=run_id, mode=options.mode.value)
    return view


def pause(context: Context) -> RunView:
    """Let calls under way end, and start no others. Harmless if the run is paused. Raises `UserError` without a run."""

    def work(tx: Tx) -> RunView:
        run = _active(tx)
        if run.status != PipelineState.PAUSED:
            runs.move(tx, run, PipelineEvent.PAUSE, **FREE)
            # Messages of these batches find no work, or arrive after a resume.
            queued = and_(BATCHES.c.run_id == run.id, BATCHES.c.status == BatchStatus.QUEUED)
            BATCH.move(tx, BATCHES, BatchEvent.GIVE_BACK, queued, updated_at=tx.now)
        return _view(tx, run.id)

    return context.db.run(work)


def resume(context: Context, expected: Sequence[Part] = ()) -> RunView:
    """Continue the paused run. `expected`: the estimated cost of the remaining songs, to reserve on the caller's
    account if no account has a reservation for them.

    Raises `UserError` if no run is paused.
    """
    resumed: list[str] = []  # by an earlier try of the transaction, whose answer may be lost

    def work(tx: Tx) -> RunView:
        run = _active(tx)
        if run.status != PipelineState.PAUSED and run.id in resumed:
            return _view(tx, run.id)
        if run.status != PipelineState.PAUSED:
            raise UserError(f"the music pipeline is not paused: it is {run.status}", code="illegal_state")
        event = PipelineEvent.RESUME_RUN if run.all_enqueued else PipelineEvent.RESUME_ENQUEUE
        event = event if run.synced else PipelineEvent.RESUME_SYNC
        runs.move(tx, run, event)
        remaining = accounts.rest(tx, "music", run.id) or expected
        accounts.admit(tx, "music", {run.id: remaining})
        tx.launch("music", run.id)
        resumed.append(run.id)
        return _view(tx, run.id)

    return context.db.run(work)


def unfinished(session: Session, run_ids: Collection[str]) -> set[str]:
    """Return the ids of runs that may still cause calls; a paused one may while calls are under way."""
    claimed = select(BATCHES.c.id).where(BATCHES.c.run_id == RUNS.c.id, BATCHES.c.status == BatchStatus.PROCESSING)
    goes_on = and_(RUNS.c.active == 1, RUNS.c.status != PipelineState.PAUSED)
    works = and_(RUNS.c.id.in_(run_ids), or_(goes_on, claimed.exists()))
    return set(session.execute(select(RUNS.c.id).where(works)).scalars())


def stop(context: Context) -> RunView:
    """End the active run at once. Calls under way go on, and their results are kept; songs without results become
    pending again, or completed if only a new vector was due.

    Raises `UserError` without an active run.
    """
    stopped: list[str] = []  # by an earlier try of the transaction, whose answer may be lost

    def work(tx: Tx) -> RunView:
        if stopped and runs.lock_active(tx) is None:
            return _view(tx, stopped[0])
        run = _active(tx)
        runs.end(tx, run, PipelineEvent.STOP, "stopped")
        result.cancel_idle(tx, run.id)
        stopped.append(run.id)
        return _view(tx, run.id)

    return context.db.run(work)


def retained(context: Context) -> list[Retention]:
    """Return the rules of retention: for completed and cancelled batches and for ended runs, without those of the last
    run, which the status shows, and for failed batches of any run."""
    kept = context.settings.retention
    last = select(RUNS.c.id).order_by(RUNS.c.active.is_(None), RUNS.c.created_at.desc()).limit(1).scalar_subquery()
    open_batches = select(BATCHES.c.id).where(BATCHES.c.run_id == RUNS.c.id, BATCHES.c.status.in_(OPEN))
    ended = func.coalesce(BATCHES.c.finished_at, BATCHES.c.updated_at)
    finished = BATCHES.c.status.in_([BatchStatus.COMPLETED, BatchStatus.CANCELLED])
    return [
        retention.rows(
            "finished batches",
            Rule(kept.batches_days, kept.batches_count),
            BATCHES.c.id,
            ended,
            finished,
            BATCHES.c.run_id != last,
        ),
        retention.rows(
            "failed batches",
            Rule(kept.failed_batches_days, kept.failed_batches_count),
            BATCHES.c.id,
            ended,
            BATCHES.c.status == BatchStatus.FAILED,
        ),
        retention.rows(
            "runs",
            Rule(kept.runs_days, kept.runs_count),
            RUNS.c.id,
            func.coalesce(RUNS.c.finished_at, RUNS.c.updated_at),
            RUNS.c.active.is_(None),
            RUNS.c.id != last,
            ~open_batches.exists(),
            portion=10,
        ),
    ]


def _active(session: Session) -> Any:
    run = runs.lock_active(session)
    if run is None:
        raise UserError("the music pipeline is idle: `penstock music start`", code="idle")
    return run


def _view(session: Session, run_id: str) -> RunView:
    return view_of(RunView, session.execute(select(RUNS).where(RUNS.c.id == run_id)).one())

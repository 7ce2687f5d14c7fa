"""What the sweeper does for music: give lost claims back, let the run's state follow the breakers, find what is due."""

from collections.abc import Iterable
from datetime import UTC, datetime

import structlog
from redis import RedisError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.engine.claims import lost
from pipeline.flows.music import runs
from pipeline.flows.music.models import BATCHES, RUNS
from pipeline.flows.music.routes import current_routes, needed_queues
from pipeline.flows.music.states import LIVE, BatchStatus, Mode, PipelineEvent, PipelineState
from pipeline.flows.music.work import batch, sync
from pipeline.providers import gates
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)


def due(context: Context) -> list[str]:
    """The active run, whose state follows the breakers first."""
    reflect_breakers(context)
    with context.db.read() as session:
        return list(session.execute(select(RUNS.c.id).where(RUNS.c.active == 1)).scalars())


def release_lost(context: Context, absent: set[str]) -> list[str]:
    """Give back what is held by absent workers or beyond its lease; the runs concerned."""
    now = datetime.now(UTC)
    with context.db.read() as session:
        batches = select(BATCHES.c.run_id).distinct().where(lost(BATCHES, now, absent))
        syncs = select(RUNS.c.id).where(lost(RUNS, now, absent))
        concerned = sorted({*session.execute(batches).scalars(), *session.execute(syncs).scalars()})
    for run_id in concerned:
        _free_run(context, run_id, absent)
    return concerned


def _free_run(context: Context, run_id: str, absent: set[str]) -> None:
    def work(session: Session) -> int:
        run = runs.lock(session, run_id)
        if run is None:
            return 0
        now = datetime.now(UTC)
        rules = batch.policy(context)
        freed = batch.release_lost(session, run, lost(BATCHES, now, absent), rules, now)
        return freed + sync.release_lost(session, run, lost(RUNS, now, absent), rules, now)

    freed = context.db.run(work)
    log.warning("music.given_back", run=run_id, claims=freed)


def release_workers(context: Context, worker_ids: Iterable[str]) -> None:
    """Give back everything that workers which are ending still hold; no attempt is counted."""
    ids = list(worker_ids)

    def work(session: Session) -> None:
        now = datetime.now(UTC)
        batch.release(session, ids, now)
        sync.release(session, ids, now)

    context.db.run(work, patience_s=5)


def breakers_in_use(context: Context, mode: Mode) -> list[str]:
    """The breakers of the queues that a run of this mode needs now."""
    found = gates.gated_queues(context.settings)
    return sorted({found[name].breaker for name in needed_queues(current_routes(context), mode) if name in found})


def reflect_breakers(context: Context) -> str:
    """Let the active run's state say whether a breaker that it needs is open; why, or empty."""
    with context.db.read() as session:
        found = session.execute(select(RUNS).where(RUNS.c.active == 1)).one_or_none()
    if found is None or found.status not in LIVE:
        return ""
    try:
        states = [gates.breaker(context, name).look() for name in breakers_in_use(context, Mode(found.mode))]
    except RedisError:
        return ""  # nobody knows; what was paid for is stored, and the run must go on
    reasons = [f"{state.name}: {state.reason}" for state in states if state.state == "open"]
    event = PipelineEvent.BREAK if reasons else PipelineEvent.MEND
    before = PipelineState.RUNNING if reasons else PipelineState.BREAKER

    def work(session: Session) -> None:
        run = runs.lock_active(session)
        if run is not None and run.status == before:
            runs.move(session, run, event, datetime.now(UTC))

    if found.status == before:
        context.db.run(work)
        log.info("music.breaker", open=bool(reasons))
    return "; ".join(reasons)


def next_wait_s(context: Context) -> float | None:
    """Seconds until the next batch or sync is due, if one waits."""
    now = datetime.now(UTC)
    batch_due = select(func.min(BATCHES.c.next_run_at)).where(
        BATCHES.c.status == BatchStatus.PENDING, BATCHES.c.next_run_at > now
    )
    sync_due = select(func.min(RUNS.c.next_run_at)).where(RUNS.c.active == 1, RUNS.c.next_run_at > now)
    with context.db.read() as session:
        moments = [found for query in (batch_due, sync_due) if (found := session.execute(query).scalar())]
    return (min(moments) - now).total_seconds() if moments else None

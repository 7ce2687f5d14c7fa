"""What the sweeper does for music: lost claims go back, the state follows the breakers, due batches are found."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import structlog
from redis import RedisError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE, lost
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.retry import Policy, RetryAt, decide
from pipeline.flows.music import runs, service
from pipeline.flows.music.library.songs import LibraryError
from pipeline.flows.music.models import BATCHES, RUNS
from pipeline.flows.music.routes import routes
from pipeline.flows.music.states import BATCH, LIVE, BatchEvent, BatchStatus, Mode, PipelineEvent, PipelineState, Step
from pipeline.flows.music.work import batch as batches
from pipeline.flows.music.work import result
from pipeline.providers import gates
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)


def due(context: Context) -> list[str]:
    """The active run, whose state follows the breakers first."""
    reflect_breakers(context)
    run_id = active_run(context)
    return [run_id] if run_id else []


def active_run(context: Context) -> str | None:
    """The run that is active."""
    with context.db.read() as session:
        return session.execute(select(RUNS.c.id).where(RUNS.c.active == 1)).scalar()


def free_lost(context: Context, absent: set[str]) -> list[str]:
    """Give back what is held by absent workers or beyond its lease; the runs concerned."""
    now = datetime.now(UTC)
    with context.db.read() as session:
        held = select(BATCHES.c.run_id).distinct().where(lost(BATCHES, now, absent))
        syncs = select(RUNS.c.id).where(lost(RUNS, now, absent))
        concerned = sorted({*session.execute(held).scalars(), *session.execute(syncs).scalars()})
    for run_id in concerned:
        _free(context, run_id, absent)
    return concerned


def _free(context: Context, run_id: str, absent: set[str]) -> None:
    def work(session: Session) -> int:
        run = runs.lock(session, run_id)
        if run is None:
            return 0
        now = datetime.now(UTC)
        rules = batches.policy(context)
        freed = batches.free_lost(session, run, lost(BATCHES, now, absent), rules, now)
        is_lost = session.execute(select(RUNS.c.id).where(RUNS.c.id == run_id, lost(RUNS, now, absent))).first()
        if is_lost:
            error = UnitError("the worker was lost while it synced the library")
            _end_sync(session, run, error, rules, now)
        return freed + bool(is_lost)

    freed = context.db.run(work)
    log.warning("music.given_back", run=run_id, claims=freed)


def _end_sync(session: Session, run: Any, error: UnitError, rules: Policy, now: datetime) -> float | None:
    """A sync ended in an error: it is tried again, or ends the run. Seconds until then, if it is."""
    row = session.execute(select(RUNS).where(RUNS.c.id == run.id)).one()
    decision = decide(error, row.attempts, now, rules)
    if isinstance(decision, RetryAt) and row.active:
        changed = {**FREE, "next_run_at": decision.at, "error": str(error)[:2000], "launches": 0, "launch_due_at": None}
        session.execute(RUNS.update().where(RUNS.c.id == row.id).values(**changed, updated_at=now))
        return (decision.at - now).total_seconds()
    if row.status == PipelineState.SYNCING:
        runs.end(session, row, PipelineEvent.FAIL, "failed", now, str(error)[:2000])
    else:
        session.execute(RUNS.update().where(RUNS.c.id == row.id).values(**FREE, updated_at=now))
    return None


def release_worker(context: Context, worker_ids: Iterable[str]) -> None:
    """Give back everything that workers which are ending still hold; no attempt is counted."""
    ids = list(worker_ids)

    def work(session: Session) -> None:
        now = datetime.now(UTC)
        held = (BATCHES.c.worker_id.in_(ids), BATCHES.c.claim_id.is_not(None))
        concerned = session.execute(select(BATCHES.c.run_id).distinct().where(*held)).scalars()
        for run_id in sorted(concerned):
            run = runs.lock(session, run_id)
            mine = select(BATCHES.c.id).where(BATCHES.c.run_id == run_id, *held)
            found = list(session.execute(mine).scalars())
            back = {**FREE, "attempts": BATCHES.c.attempts - 1, "launches": 0, "launch_due_at": None}
            BATCH.move(session, BATCHES, BatchEvent.GIVE_BACK, BATCHES.c.id.in_(found), **back, updated_at=now)
            if run is not None and not run.active:
                result.release(session, found, now)
        syncing = (RUNS.c.worker_id.in_(ids), RUNS.c.claim_id.is_not(None))
        back = {**FREE, "attempts": RUNS.c.attempts - 1, "launches": 0, "launch_due_at": None}
        session.execute(RUNS.update().where(*syncing).values(**back, updated_at=now))

    context.db.run(work, patience_s=5)


def fail_sync(context: Context, run_id: str, claim_id: str, failure: LibraryError) -> float | None:
    """A run's sync could not read its library: seconds until it is tried again, None if the run failed."""
    kind = ErrorKind.TRANSIENT if failure.transient else ErrorKind.PERMANENT

    def work(session: Session) -> float | None:
        run = runs.lock(session, run_id)
        if run is None or run.claim_id != claim_id:
            return None
        error = UnitError(str(failure), kind=kind, code=failure.code)
        return _end_sync(session, run, error, batches.policy(context), datetime.now(UTC))

    return context.db.run(work)


def breakers_in_use(context: Context, mode: Mode) -> list[str]:
    """The breakers that close queues which a run of this mode needs: those of a provider that stands in, if any."""
    steps = [Step.EMBED] if mode is Mode.EMBEDDING else [Step.METADATA, Step.EMBED]
    steps = [Step.METADATA] if mode is Mode.METADATA else steps
    found = gates.gated_queues(context.settings)
    open_to = routes(context)
    names = {open_to.queue(mode, step) for step in steps}
    return sorted({found[name].breaker for name in names if name in found})


def reflect_breakers(context: Context) -> str:
    """Show on the run whether a breaker that it needs is open; why, or empty."""
    with context.db.read() as session:
        run = session.execute(select(RUNS).where(RUNS.c.active == 1)).one_or_none()
    if run is None or run.status not in LIVE:
        return ""
    try:
        found = [gates.breaker(context, name).look() for name in breakers_in_use(context, Mode(run.mode))]
    except RedisError:
        return ""  # nobody knows; what was paid for is stored, and the run must go on
    reasons = [f"{state.name}: {state.reason}" for state in found if state.state == "open"]
    service.reflect_breaker(context, is_open=bool(reasons))
    return "; ".join(reasons)


def next_wait_s(context: Context) -> float | None:
    """Seconds until the next batch or sync is due, if one waits."""
    now = datetime.now(UTC)
    batch = select(func.min(BATCHES.c.next_run_at)).where(
        BATCHES.c.status == BatchStatus.PENDING, BATCHES.c.next_run_at > now
    )
    sync = select(func.min(RUNS.c.next_run_at)).where(RUNS.c.active == 1, RUNS.c.next_run_at > now)
    with context.db.read() as session:
        due = [found for query in (batch, sync) if (found := session.execute(query).scalar())]
    return (min(due) - now).total_seconds() if due else None

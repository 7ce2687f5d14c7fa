"""Finds due runs for the sweeper and wake-ups, and sets the run's state by the breakers."""

from collections.abc import Collection

import structlog
from redis import RedisError
from sqlalchemy import ColumnElement, or_, select

from pipeline.engine.claims import anything
from pipeline.engine.transaction import Tx
from pipeline.engine.work import next_due
from pipeline.flows.music import runs
from pipeline.flows.music.models import BATCHES, RUNS
from pipeline.flows.music.routes import current_routes, needed_queues
from pipeline.flows.music.states import AT_WORK, LIVE, Mode, PipelineEvent, PipelineState
from pipeline.flows.music.work.batch import BATCH_WORK
from pipeline.flows.music.work.sync import SYNC_WORK
from pipeline.providers import gates
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
ANYTHING = anything((RUNS, BATCHES), (RUNS, RUNS.c.active == 1))
"""Whether a run is active."""


def due(context: Context) -> list[str]:
    """Return a list of the active run's id if the wait of its sync or of a batch is over, else an empty one. First
    moves the run between RUNNING and BREAKER by the breakers."""
    reflect_breakers(context)
    now = context.db.now()
    batches = select(BATCHES.c.run_id).where(BATCH_WORK.waits(BATCHES.c.next_run_at <= now))
    return _active(context, or_(RUNS.c.id.in_(batches), SYNC_WORK.waits(RUNS.c.next_run_at <= now)))


def runnable(context: Context, _closed_queues: Collection[str] = ()) -> list[str]:
    """Return a list of the active run's id, empty if it is paused or no run is active. The launch itself skips batches
    that wait for closed gates."""
    return _active(context)


def _active(context: Context, *which: ColumnElement[bool]) -> list[str]:
    with context.db.read() as session:
        query = select(RUNS.c.id).where(RUNS.c.active == 1, RUNS.c.status.in_(AT_WORK), *which)
        return list(session.execute(query).scalars())


def next_wait_s(context: Context) -> float | None:
    """Return the seconds until the next batch or sync is due for its retry; None if none waits. Ignores rows that are
    due already."""
    with context.db.read() as session:
        waits = [next_due(session, kind) for kind in (BATCH_WORK, SYNC_WORK)]
    return min((wait for wait in waits if wait is not None), default=None)


def breakers_in_use(context: Context, mode: Mode) -> list[str]:
    """Return the names of the breakers of the queues that a run of this mode needs now."""
    queues = context.gates.queues
    return sorted({queues[name].breaker for name in needed_queues(current_routes(context), mode) if name in queues})


def reflect_breakers(context: Context) -> str:
    """Move the active run between RUNNING and BREAKER by the breakers that it needs; return why they are open. Empty if
    none is open, if no run is RUNNING or BREAKER, and while Redis does not answer."""
    with context.db.read() as session:
        active = session.execute(select(RUNS).where(RUNS.c.active == 1)).one_or_none()
    if active is None or active.status not in LIVE:
        return ""
    try:
        states = [gates.breaker(context, name).inspect() for name in breakers_in_use(context, Mode(active.mode))]
    except RedisError:
        return ""  # the breakers are unknown, and the run must go on
    reasons = [f"{state.name}: {state.reason}" for state in states if state.state == "open"]
    event = PipelineEvent.BREAK if reasons else PipelineEvent.MEND
    before = PipelineState.RUNNING if reasons else PipelineState.BREAKER

    def work(tx: Tx) -> None:
        run = runs.lock_active(tx)
        if run is not None and run.status == before:
            runs.move(tx, run, event)

    if active.status == before:
        context.db.run(work)
        log.info("music.breaker", open=bool(reasons))
    return "; ".join(reasons)

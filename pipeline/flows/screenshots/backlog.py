"""Frames, batches, nodes and vectors that wait, and the batches that failed last."""

from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy import func, select

from pipeline.engine.backlog import Failure, Waiting
from pipeline.engine.backlog import waiting as counted
from pipeline.engine.claims import in_states, is_due
from pipeline.flows.screenshots.frames import buffer
from pipeline.flows.screenshots.live_settings import CONTROL
from pipeline.flows.screenshots.models import BATCHES, SHOTS
from pipeline.flows.screenshots.plan import Routes, routes
from pipeline.flows.screenshots.states import CLAIMABLE, Step, WorkStatus
from pipeline.flows.screenshots.work import embedding, expansion, merge, shard
from pipeline.storage.context import Context


def waiting(context: Context) -> Iterator[Waiting]:
    """Frames without a batch, batches whose turn has not come, and what is under way, by the queues open now."""
    # Breakers are in Redis: while that is down, asking them would take seconds, and nothing goes anywhere.
    now, to = context.db.now(), routes(context) if context.online else Routes(CONTROL, CONTROL, CONTROL)
    unbegun = (in_states(BATCHES, CLAIMABLE), BATCHES.c.step == Step.ANALYSE)
    with context.db.read() as session:
        frames = session.execute(select(func.count()).select_from(SHOTS).where(buffer.buffered())).scalar_one()
        turns, due = session.execute(
            select(func.count(), func.count().filter(is_due(BATCHES, now))).select_from(BATCHES).where(*unbegun)
        ).one()
        kinds = (
            (shard.WORK, "screenshot_shards", to.analyse),
            (expansion.WORK, "screenshot_batches", to.expand),
            (merge.WORK, "merges", to.merge),
            (embedding.WORK, "vectors", to.embed),
        )
        found = [
            replace(one, queue=queue) for kind, name, queue in kinds for _, one in counted(session, kind, name, now)
        ]
    if frames:
        yield Waiting("screenshots", frames, why="until there are enough for a batch, or long enough no other came")
    if turns:
        yield Waiting("screenshot_batches", turns, to.analyse, later=turns - due)
    yield from found


def failures(context: Context, limit: int) -> list[Failure]:
    """The newest batches that nobody tries again by himself."""
    c = BATCHES.c
    failed = select(BATCHES).where(c.status == WorkStatus.FAILED_PERMANENT)
    with context.db.read() as session:
        rows = session.execute(failed.order_by(c.created_at.desc()).limit(limit)).all()
    return [
        Failure(
            "screenshots",
            "screenshot_batch",
            str(row.id),
            f"Batch {row.id} of {row.source_key}",
            row.error or "it failed",
            row.updated_at,
        )
        for row in rows
    ]

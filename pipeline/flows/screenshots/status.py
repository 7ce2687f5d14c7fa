"""How the flow stands: what is done, waits and failed, what holds it up, and what was done without a model.

`waiting` and `failures` are for lists of all flows.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

from redis import RedisError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.engine.backlog import Failure, Waiting
from pipeline.engine.backlog import waiting as counted
from pipeline.engine.claims import in_states, is_due
from pipeline.engine.metrics import count_by
from pipeline.engine.presence import Presence
from pipeline.engine.transaction import ReadTx
from pipeline.flows.screenshots import live_settings, queries
from pipeline.flows.screenshots.frames import buffer
from pipeline.flows.screenshots.graph.models import EMBEDDINGS, NODES
from pipeline.flows.screenshots.live_settings import CONTROL
from pipeline.flows.screenshots.models import BATCHES, REJECTIONS, SHOTS, SOURCES
from pipeline.flows.screenshots.plan import Routes, routes
from pipeline.flows.screenshots.rules import heuristics
from pipeline.flows.screenshots.states import CLAIMABLE, Step, WorkStatus
from pipeline.flows.screenshots.views import Retry, Status
from pipeline.flows.screenshots.work import embedding, expansion, merge, shard
from pipeline.providers import gates
from pipeline.storage.context import Context

LEXICAL_NOTE = (
    "No provider makes vectors: search knows words and parts of words, but no meaning. "
    "Name one in PENSTOCK_SCREENSHOTS__EMBEDDINGS_PROVIDER for more."
)
LATE_BATCHES = 10
"""How many of the latest batches are asked for their notes."""
MAX_NOTES = 8


def status(context: Context, *, makers: bool = True) -> Status:
    """How the flow stands now. `makers`: also who made the nodes, which takes a look at each of them."""
    with context.db.read() as session:
        shots, batches = count_by(session, SHOTS.c.status), count_by(session, BATCHES.c.status)
        merges = count_by(session, NODES.c.status)
        buffered = _buffered(session)
        unbegun = (BATCHES.c.status == WorkStatus.PENDING, BATCHES.c.attempts == 0)
        oldest = session.execute(select(func.min(BATCHES.c.created_at)).where(*unbegun)).scalar()
        pressure = session.execute(select(func.max(SOURCES.c.pressure))).scalar() or 0
        rejected = count_by(session, REJECTIONS.c.reason)
        made_by = count_by(session, NODES.c.made_by) if makers else {}
        vectors = count_by(session, EMBEDDINGS.c.status)
        notes = _notes(session, any_frames=bool(shots))
        again = _retries(session)
    counted = {"batch": batches, "merge": merges, "vector": vectors}
    gave_up = {kind: by.get(WorkStatus.FAILED_PERMANENT, 0) for kind, by in counted.items()}
    return Status(
        screenshots=_in_order(shots),
        batches=_in_order(batches),
        merges=_in_order(merges),
        vectors=_in_order(vectors),
        buffered=buffered,
        next_batch_in_s=min((one.wait_s for one in buffer.waiting(context)), default=None),
        oldest_waiting_s=max(0.0, (context.db.now() - oldest).total_seconds()) if oldest else None,
        pressure=pressure,
        rejected=rejected,
        retries=again,
        dead_letters={kind: count for kind, count in gave_up.items() if count},
        made_by=made_by,
        closed=closed(context),
        notes=notes,
        is_worker_running=_alive(context),
        capture=queries.latest_capture(context),
    )


def retries(context: Context) -> list[Retry]:
    """What failed and will be tried again, with the latest reason."""
    with context.db.read() as session:
        return _retries(session)


def _retries(tx: ReadTx) -> list[Retry]:
    found = []
    for kind, table in (("batch", BATCHES), ("merge", NODES)):
        waits = table.c.status == WorkStatus.FAILED
        count, due = tx.execute(select(func.count(), func.min(table.c.next_run_at)).where(waits)).one()
        if count:
            latest = select(table.c.error).where(waits, table.c.error.is_not(None)).order_by(table.c.updated_at.desc())
            reason = tx.execute(latest.limit(1)).scalar() or ""
            found.append(Retry(kind, count, max(0.0, (due - tx.now).total_seconds()) if due else 0.0, reason))
    return found


def _in_order(counted: dict[str, int]) -> dict[str, int]:
    return {state.value: counted[state] for state in WorkStatus if state in counted}


def _notes(tx: ReadTx, *, any_frames: bool) -> list[str]:
    """What is done without a model by these settings, then what the latest batches say; each note once."""
    rules = tx.settings.screenshots
    wanted = ((rules.vision_provider, heuristics.NOTE), (rules.text_provider, heuristics.TEXT_NOTE))
    # Without frames, nothing was done by rules yet.
    found = [note for provider, note in wanted if not provider and any_frames]
    found += [] if rules.embeddings_provider else [LEXICAL_NOTE]
    late = select(BATCHES.c.notes).where(BATCHES.c.notes != "[]").order_by(BATCHES.c.id.desc()).limit(LATE_BATCHES)
    found += [note for notes in tx.execute(late).scalars() for note in json.loads(notes)]
    return list(dict.fromkeys(found))[:MAX_NOTES]


def closed(context: Context) -> list[str]:
    """Gates of the flow's queues that let nothing through now, in words."""
    if not context.online:
        return []
    names = sorted(queue.name for queue in live_settings.gated_queues(context.settings))
    return list(dict.fromkeys(filter(None, (gates.closed_because(context, name) for name in names))))


def _alive(context: Context) -> bool:
    try:
        return context.online and bool(Presence(context.redis).alive())
    except RedisError:
        return False


def _buffered(session: Session) -> int:
    return session.execute(select(func.count()).select_from(SHOTS).where(buffer.buffered())).scalar_one()


def waiting(context: Context) -> Iterator[Waiting]:
    """Frames without a batch, batches whose turn has not come, and what is under way, by the queues open now."""
    # Breakers are in Redis: while that is down, asking them would take seconds, and nothing goes anywhere.
    now, to = context.db.now(), routes(context) if context.online else Routes(CONTROL, CONTROL, CONTROL)
    unbegun = (in_states(BATCHES, CLAIMABLE), BATCHES.c.step == Step.ANALYSE)
    with context.db.read() as session:
        frames = _buffered(session)
        turns, due = session.execute(
            select(func.count(), func.count().filter(is_due(BATCHES, now))).select_from(BATCHES).where(*unbegun)
        ).one()
        kinds = (
            (shard.WORK, "screenshot_shards", to.analyse),
            (expansion.WORK, "screenshot_batches", to.expand),
            (merge.WORK, "merges", to.merge),
            (embedding.WORK, "vectors", to.embed),
        )
        found = [replace(one, queue=queue) for kind, name, queue in kinds for _, one in counted(session, kind, name)]
    if frames:
        yield Waiting("screenshots", frames, why="until there are enough for a batch, or long enough no other came")
    if turns:
        yield Waiting("screenshot_batches", turns, to.analyse, later=turns - due)
    yield from found


def failures(context: Context, limit: int) -> list[Failure]:
    """The newest batches without an automatic retry."""
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

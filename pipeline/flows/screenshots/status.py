"""The status of the flow: counts by state, waiting work and its reasons, failures, and notes.

`waiting` and `failures` feed lists over all flows.
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
    "No embeddings provider is configured: search matches words and parts of words, but not their meaning. "
    "Name one in PENSTOCK_SCREENSHOTS__EMBEDDINGS_PROVIDER for more."
)
LATE_BATCHES = 10
"""Number of latest batches whose notes the status shows."""
MAX_NOTES = 8


def status(context: Context, *, makers: bool = True) -> Status:
    """Return the flow's status. `makers`: also count nodes by origin, which reads each of them."""
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
        retries = _retries(session)
    counted = {"batch": batches, "merge": merges, "vector": vectors}
    letters = {kind: by.get(WorkStatus.FAILED_PERMANENT, 0) for kind, by in counted.items()}
    return Status(
        screenshots=_in_order(shots),
        batches=_in_order(batches),
        merges=_in_order(merges),
        vectors=_in_order(vectors),
        buffered=buffered,
        next_batch_in_s=min((state.wait_s for state in buffer.waiting(context)), default=None),
        oldest_waiting_s=max(0.0, (context.db.now() - oldest).total_seconds()) if oldest else None,
        pressure=pressure,
        rejected=rejected,
        retries=retries,
        dead_letters={kind: count for kind, count in letters.items() if count},
        made_by=made_by,
        closed=closed(context),
        notes=notes,
        is_worker_running=_alive(context),
        capture=queries.latest_capture(context),
    )


def retries(context: Context) -> list[Retry]:
    """Return, for batches and for merges, how many failed and wait for a retry, the seconds until the first retry, and
    the latest reason; leave out a kind without any."""
    with context.db.read() as session:
        return _retries(session)


def _retries(tx: ReadTx) -> list[Retry]:
    retries = []
    for kind, table in (("batch", BATCHES), ("merge", NODES)):
        waits = table.c.status == WorkStatus.FAILED
        count, due = tx.execute(select(func.count(), func.min(table.c.next_run_at)).where(waits)).one()
        if count:
            latest = select(table.c.error).where(waits, table.c.error.is_not(None)).order_by(table.c.updated_at.desc())
            reason = tx.execute(latest.limit(1)).scalar() or ""
            retries.append(Retry(kind, count, max(0.0, (due - tx.now).total_seconds()) if due else 0.0, reason))
    return retries


def _in_order(counted: dict[str, int]) -> dict[str, int]:
    return {state.value: counted[state] for state in WorkStatus if state in counted}


def _notes(tx: ReadTx, *, any_frames: bool) -> list[str]:
    """Return notes about steps without a model by these settings, then notes of the latest batches, without repeats."""
    rules = tx.settings.screenshots
    wanted = ((rules.vision_provider, heuristics.NOTE), (rules.text_provider, heuristics.TEXT_NOTE))
    # Without frames, no rule has replaced a model yet.
    notes = [note for provider, note in wanted if not provider and any_frames]
    notes += [] if rules.embeddings_provider else [LEXICAL_NOTE]
    late = select(BATCHES.c.notes).where(BATCHES.c.notes != "[]").order_by(BATCHES.c.id.desc()).limit(LATE_BATCHES)
    notes += [note for row_notes in tx.execute(late).scalars() for note in json.loads(row_notes)]
    return list(dict.fromkeys(notes))[:MAX_NOTES]


def closed(context: Context) -> list[str]:
    """Return why gates of the flow's queues are closed, in words; empty while Redis is down."""
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
    """Yield counts: frames without a batch, batches that wait for their analysis or its retry, and shards, expansions,
    merges and vectors by the queue that their messages take now."""
    # Breakers are in Redis. While Redis is down, reading them would take seconds, and no message can move.
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
        units = [replace(unit, queue=queue) for kind, name, queue in kinds for _, unit in counted(session, kind, name)]
    if frames:
        yield Waiting("screenshots", frames, why="until they fill a batch, or until the batch timeout")
    if turns:
        yield Waiting("screenshot_batches", turns, to.analyse, later=turns - due)
    yield from units


def failures(context: Context, limit: int) -> list[Failure]:
    """Return at most `limit` batches that are dead letters, the last created first."""
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
            row.error or "unknown reason",
            row.updated_at,
        )
        for row in rows
    ]

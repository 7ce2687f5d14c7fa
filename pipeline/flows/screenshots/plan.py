"""What is due now and where it goes, derived from rows: capture, retry, replay and recovery all end here."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import structlog
from redis import RedisError
from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import is_due
from pipeline.engine.leases import Leases
from pipeline.engine.metrics import queue_depths
from pipeline.engine.relaunch import again
from pipeline.flows.screenshots.frames import buffer
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.live_settings import (
    CONTROL,
    CPU,
    SCREENSHOT_EMBEDDINGS,
    SCREENSHOT_TEXT,
    SCREENSHOT_VISION,
    screenshots_in_force,
)
from pipeline.flows.screenshots.models import BATCHES, SHARDS
from pipeline.flows.screenshots.rules.turn_order import pick, scanned, track_of
from pipeline.flows.screenshots.states import CLAIMABLE, Step, Track, WorkStatus
from pipeline.flows.screenshots.work.batch import as_sent
from pipeline.providers import fallbacks, gates
from pipeline.settings import LOCAL, ScreenshotSettings
from pipeline.storage.context import Context

TURN = "penstock:{screenshots}:turn"
"""Whose turn it is. If that is lost, turns begin anew, with realtime."""
MAX_OVERDUE = 500
log = structlog.get_logger(__name__)


class Scope(StrEnum):
    """What is launched as a whole: batches of frames on their way to nodes, merges of nodes, and vectors of nodes."""

    BATCHES = "batches"
    MERGES = "merges"
    VECTORS = "vectors"


@dataclass(frozen=True)
class Routes:
    """Where messages go now. `shut`: queues behind an open breaker, whose messages may go elsewhere meanwhile."""

    analyse: str
    expand: str
    embed: str
    shut: frozenset[str] = frozenset()

    @property
    def merge(self) -> str:
        """Where two nodes are merged: whoever expands also merges."""
        return self.expand

    def queue(self, step: Step) -> str:
        """The queue of a batch's step."""
        return self.analyse if step is Step.ANALYSE else self.expand

    def astray(self, queue: str, step: Step) -> bool:
        """Whether a message that waits in `queue` waits behind an open breaker while another queue is open to it."""
        return queue in self.shut and queue != self.queue(step)


def routes(context: Context) -> Routes:
    """Where messages go now, by the breakers.

    Frames wait for a provider that is down, unless another one, or this machine, stands in. Expansion goes on without
    a text model meanwhile (source 000, section 6.2), for that only adds to what is known.
    """
    own = context.settings.screenshots
    shut: set[str] = set()
    analyse = expand = CONTROL
    if not own.vision_provider:
        analyse = CPU
    else:
        if gates.is_open(context, own.vision_provider, "vision"):
            shut.add(SCREENSHOT_VISION)
        looks = fallbacks.stand_in(context, own.vision_provider, "vision", local=True)
        named = {LOCAL: CPU, own.vision_provider: SCREENSHOT_VISION}
        analyse = named.get(looks) or fallbacks.stand_in_queue(looks)
    if own.text_provider:
        if gates.is_open(context, own.text_provider, "text"):
            shut.add(SCREENSHOT_TEXT)
        writes = fallbacks.stand_in(context, own.text_provider, "text", local=False)
        if writes != own.text_provider:
            expand = fallbacks.stand_in_queue(writes)
        elif SCREENSHOT_TEXT not in shut:
            expand = SCREENSHOT_TEXT
    embed = SCREENSHOT_EMBEDDINGS if own.embeddings_provider else CONTROL
    return Routes(analyse, expand, embed, frozenset(shut))


@dataclass(frozen=True)
class BatchLaunch:
    """A batch whose canvas is to be sent, from `step` on. `expand`: the queue of its second step.

    `filler`: it recovers in a place that no new batch wanted, and lets later batches pass it in the queues.
    """

    id: int
    step: Step
    expand: str
    filler: bool = False


def plan(context: Context) -> list[BatchLaunch]:
    """The batches to send now, noted as sent on their rows.

    First those that something was paid for, then as many others as there are places for, new and old ones by turns.
    Source 000, sections 2.2 and 2.4.
    """
    rules = screenshots_in_force(context)
    now_open = routes(context)
    depths = _depths(context, [CONTROL, now_open.analyse, now_open.expand])
    # What waits before a closed gate is not lost, however long: sent again and again, it would pile up.
    closed = {name for name, depth in depths.items() if depth and gates.closed_because(context, name)}
    turn = _turn(context)

    def work(session: Session) -> tuple[list[BatchLaunch], int]:
        now = datetime.now(UTC)
        found = _overdue(session, now_open, depths, closed, now)
        found += _to_expand(session, now_open, now)
        begun, after = _to_analyse(session, rules, now_open, turn, now)
        return [*found, *begun], after

    launches, after = context.db.run(work)
    if after != turn and context.online:
        _note_turn(context, after)
    return launches


def _depths(context: Context, names: list[str]) -> dict[str, int]:
    """Messages in these queues; empty if Redis cannot say."""
    try:
        return queue_depths(context.redis, names) if context.online else {}
    except RedisError:
        return {}


def _turn(context: Context) -> int:
    try:
        return int(context.redis.get(TURN) or 0) if context.online else 0
    except (RedisError, ValueError):
        return 0


def _note_turn(context: Context, turn: int) -> None:
    try:
        context.redis.set(TURN, turn % 1_000_000)
    except RedisError:
        return


def places(rules: ScreenshotSettings) -> int:
    """Batches under analysis at once: enough for every call that is allowed, and some to follow without a gap."""
    shards = math.ceil(rules.batch_size / rules.shard_size)
    return rules.batch_workers + math.ceil(rules.vision_concurrency / shards)


def _overdue(
    session: Session, open_to: Routes, depths: dict[str, int], closed: set[str], now: datetime
) -> list[BatchLaunch]:
    """Batches whose messages seem lost: long due, while their queue holds too few messages, or due for very long.

    Also those whose message waits behind an open breaker while there is another way.
    """
    mine = select(SHARDS.c.id).where(SHARDS.c.batch_id == BATCHES.c.id)
    held = mine.where(SHARDS.c.claim_id.is_not(None)).exists()
    asked_for = mine.where(SHARDS.c.status.in_(CLAIMABLE), is_due(SHARDS, now)).exists()
    sent = and_(BATCHES.c.launches > 0, BATCHES.c.status.in_(CLAIMABLE), is_due(BATCHES, now))
    analysed = and_(BATCHES.c.step == Step.ANALYSE, BATCHES.c.status == WorkStatus.RUNNING, ~held)
    due = or_(BATCHES.c.launch_due_at.is_(None), BATCHES.c.launch_due_at <= now, BATCHES.c.queue.in_(open_to.shut))
    query = select(BATCHES, asked_for.label("asked_for")).where(or_(sent, analysed), due)
    rows = session.execute(query.order_by(BATCHES.c.id).limit(MAX_OVERDUE)).all()
    expected = _expected(session, now) if rows else {}
    found = []
    for row in rows:
        step = Step(row.step)
        queue = open_to.queue(step)
        astray = open_to.astray(row.queue, step)
        if not astray and row.launch_due_at is not None and row.launch_due_at > now:
            continue
        # Without a time its message is known to be lost; if all shards are done, none is in their queue.
        wanted = row.status != WorkStatus.RUNNING or row.asked_for
        # What begins a batch is in a queue of its own, where nothing waits for a provider.
        waits_in = CONTROL if step is Step.ANALYSE and row.status != WorkStatus.RUNNING else queue
        there = depths.get(waits_in, 0)
        all_there = there > 0 and (waits_in == CONTROL or there >= expected.get(step, 0))
        waits = not astray and wanted and row.launch_due_at is not None and all_there
        idle = timedelta() if waits_in in closed else now - row.updated_at
        asked, later = again(row.launches, idle, waits=waits)
        values = {"launches": row.launches + int(asked), "launch_due_at": now + later}
        if asked:
            values["queue"] = queue
            found.append(BatchLaunch(row.id, step, open_to.expand))
        session.execute(update(BATCHES).where(BATCHES.c.id == row.id).values(**values))
    return found


def _expected(session: Session, now: datetime) -> dict[Step, int]:
    """Messages that each step's queue should hold: one for a shard that nobody has claimed, one for a batch that was
    sent to become nodes."""
    running = select(BATCHES.c.id).where(BATCHES.c.step == Step.ANALYSE, BATCHES.c.status == WorkStatus.RUNNING)
    shards = and_(SHARDS.c.batch_id.in_(running), SHARDS.c.status.in_(CLAIMABLE), is_due(SHARDS, now))
    sent = and_(BATCHES.c.step == Step.EXPAND, BATCHES.c.status.in_(CLAIMABLE), BATCHES.c.launches > 0)
    return {
        Step.ANALYSE: session.execute(select(func.count()).select_from(SHARDS).where(shards)).scalar_one(),
        Step.EXPAND: session.execute(select(func.count()).select_from(BATCHES).where(sent)).scalar_one(),
    }


def _to_expand(session: Session, open_to: Routes, now: datetime) -> list[BatchLaunch]:
    waiting = and_(
        BATCHES.c.step == Step.EXPAND, BATCHES.c.status.in_(CLAIMABLE), is_due(BATCHES, now), BATCHES.c.launches == 0
    )
    ids = session.execute(select(BATCHES.c.id).where(waiting).order_by(BATCHES.c.id).limit(MAX_OVERDUE)).scalars().all()
    return [one for batch_id in ids if (one := _send(session, batch_id, Step.EXPAND, open_to, now))]


def _to_analyse(
    session: Session, rules: ScreenshotSettings, open_to: Routes, turn: int, now: datetime
) -> tuple[list[BatchLaunch], int]:
    """Give free places to batches, picked half from the newest and half from the oldest."""
    free = places(rules) - _under_way(session, Step.ANALYSE, now)
    behind = _under_way(session, Step.EXPAND, now) - places(rules) - rules.text_concurrency
    free = min(free, -behind)
    if free <= 0:
        return [], turn
    waiting = and_(
        BATCHES.c.step == Step.ANALYSE, BATCHES.c.status.in_(CLAIMABLE), is_due(BATCHES, now), BATCHES.c.launches == 0
    )
    columns = (BATCHES.c.id, BATCHES.c.attempts, BATCHES.c.created_at)
    limit = max(rules.scan_limit, 2 * free)
    query = select(*columns).where(waiting).limit(limit)
    newest = session.execute(query.order_by(BATCHES.c.created_at.desc(), BATCHES.c.id.desc())).all()
    oldest = session.execute(query.order_by(BATCHES.c.created_at, BATCHES.c.id)).all()
    rows: list[Any] = scanned(newest, oldest, limit)
    weights = {Track.REALTIME: rules.realtime_weight, Track.RECOVERY: rules.recovery_weight}
    picked, after = pick(rows, free, now, rules.recovery_age_s, weights, turn)
    # Beside new batches, an old one has a turn of its own and is as urgent, or it might wait in a queue for ever.
    filler = all(track_of(row.attempts, row.created_at, now, rules.recovery_age_s) is Track.RECOVERY for row in rows)
    sent = [_send(session, row.id, Step.ANALYSE, open_to, now) for row in picked]
    return [replace(one, filler=filler) for one in sent if one], after


def _under_way(session: Session, step: Step, now: datetime) -> int:
    """Batches in this step that somebody works on, or whose message is on its way."""
    sent = and_(BATCHES.c.status.in_(CLAIMABLE), BATCHES.c.launches > 0, is_due(BATCHES, now))
    mine = and_(BATCHES.c.step == step, or_(BATCHES.c.status == WorkStatus.RUNNING, sent))
    return int(session.execute(select(func.count()).select_from(BATCHES).where(mine)).scalar_one())


def _send(session: Session, batch_id: int, step: Step, open_to: Routes, now: datetime) -> BatchLaunch | None:
    """Note that a batch is sent; None if somebody else has just done so."""
    unsent = (BATCHES.c.launches == 0, or_(BATCHES.c.launch_due_at.is_(None), BATCHES.c.launch_due_at <= now))
    mine = (BATCHES.c.id == batch_id, BATCHES.c.step == step, BATCHES.c.status.in_(CLAIMABLE))
    sent = update(BATCHES).where(*mine, *unsent).values(queue=open_to.queue(step), **as_sent(now))
    taken = session.execute(sent.returning(BATCHES.c.id)).first()
    return BatchLaunch(batch_id, step, open_to.expand) if taken else None


def due(context: Context) -> list[str]:
    """Batch frames that waited long enough; then every scope may have something to do."""
    portions: tuple[Callable[[Context], object], ...] = (buffer.batch_ready, buffer.batch_orphans)
    for batch in portions:
        try:
            batch(context)
        except Exception as error:
            # What one source's rows raise must not keep the others' batches from being launched.
            log.exception("buffers.not_batched", error=type(error).__name__)
    return list(Scope)


def next_wait_s(context: Context) -> float | None:
    """Seconds until a batch or merge is due, or a buffer makes a batch; None if nothing waits."""
    waits = (next_retry_s(context), buffer.next_look_s(context))
    return min((wait for wait in waits if wait is not None), default=None)


def next_retry_s(context: Context) -> float | None:
    """Seconds until the next batch or merge is due, if one waits."""
    now = datetime.now(UTC)
    with context.db.read() as session:
        due = [
            at
            for table in (BATCHES, NODES)
            if (at := session.execute(select(func.min(table.c.next_run_at)).where(table.c.next_run_at > now)).scalar())
        ]
    return (min(due) - now).total_seconds() if due else None


def merge_places(context: Context) -> Leases:
    """Messages for merges that wait or are at work. One that is lost gives its place back by itself."""
    return Leases(context.redis, "screenshots:merges", screenshots_in_force(context).merge_workers)


def embed_place(context: Context) -> Leases:
    """The one message for vectors that waits or is at work."""
    return Leases(context.redis, "screenshots:embed", limit=1)

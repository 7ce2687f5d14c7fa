"""What is due now and where it goes, derived from rows: capture, retry, replay and recovery all end here."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from redis import RedisError
from sqlalchemy import ColumnElement, and_, case, func, or_, select, update

from pipeline.engine.claims import anything, in_states, is_due
from pipeline.engine.transaction import ReadTx, Tx
from pipeline.flows.screenshots.frames import buffer
from pipeline.flows.screenshots.graph.models import EMBEDDINGS, NODES
from pipeline.flows.screenshots.live_settings import (
    CONTROL,
    CPU,
    SCREENSHOT_EMBEDDINGS,
    SCREENSHOT_TEXT,
    SCREENSHOT_VISION,
    screenshots_in_force,
)
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.rules.turn_order import pick, scanned, track_of
from pipeline.flows.screenshots.scopes import Scope, buffer_of, buffers_among, scope_of
from pipeline.flows.screenshots.states import CLAIMABLE, Step, Track, WorkStatus
from pipeline.providers import fallbacks, gates
from pipeline.settings import LOCAL, ScreenshotSettings
from pipeline.storage.context import Context

TURN = "penstock:{screenshots}:turn"
"""Whose turn it is. If that is lost, turns begin anew, with realtime."""
PORTION = 500
URGENT, FILLER = 0, 3
"""Priorities of messages in Redis: steps of three, the lowest number first. FILLER: the batch recovers in a place that
no new batch wanted, and lets later batches pass it in the queues."""
WAITING = (BATCHES, SHARDS, NODES, EMBEDDINGS)
"""Tables whose rows may wait for a time of their own."""
ANYTHING = anything(
    WAITING,
    *((table, in_states(table, CLAIMABLE)) for table in (BATCHES, NODES, EMBEDDINGS)),
    (BATCHES, in_states(BATCHES, [WorkStatus.RUNNING])),
    (SHOTS, buffer.buffered()),
)
"""Whether a frame waits for its batch, or something of a batch, a node or a vector is to be done."""


@dataclass(frozen=True)
class Routes:
    """Where messages go now."""

    analyse: str
    expand: str
    embed: str

    @property
    def merge(self) -> str:
        """Where two nodes are merged: whoever expands also merges."""
        return self.expand


def routes(context: Context) -> Routes:
    """Where messages go now, by the breakers.

    Frames wait for a provider that is down, unless another one, or this machine, stands in. Expansion goes on without
    a text model meanwhile (docs/sources/screenshots.md#expansion), for that only adds to what is known.
    """
    own = context.settings.screenshots
    analyse = expand = CONTROL
    if not own.vision_provider:
        analyse = CPU
    else:
        looks = fallbacks.stand_in(context, own.vision_provider, "vision", local=True)
        named = {LOCAL: CPU, own.vision_provider: SCREENSHOT_VISION}
        analyse = named.get(looks) or fallbacks.stand_in_queue(looks)
    if own.text_provider:
        writes = fallbacks.stand_in(context, own.text_provider, "text", local=False)
        if writes != own.text_provider:
            expand = fallbacks.stand_in_queue(writes)
        elif not gates.is_open(context, own.text_provider, "text"):
            expand = SCREENSHOT_TEXT
    embed = SCREENSHOT_EMBEDDINGS if own.embeddings_provider else CONTROL
    return Routes(analyse, expand, embed)


class Action(StrEnum):
    """What is next for a batch."""

    BEGIN = "begin"
    ANALYSE = "analyse"
    MERGE = "merge"
    """All its shards have ended."""
    EXPAND = "expand"


@dataclass(frozen=True)
class NextStep:
    """The messages that a batch's rows ask for now, be they on their way already or not."""

    batch_id: int
    action: Action
    queue: str = CONTROL
    places: int = 1
    priority: int = URGENT


def buffers(context: Context, scopes: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """(source, whether all its frames are meant): the buffers among these scopes that make a batch now."""
    meant = buffers_among(scopes)
    for one in buffer.waiting(context) if meant else ():
        if one.ready and buffer_of(one.source) in meant:
            yield one.source, False
        if buffer_of(one.source, flush=True) in meant:
            yield one.source, True


def ready_buffers(context: Context) -> list[str]:
    """The sources whose frames make a batch now, as scopes."""
    return [buffer_of(one.source) for one in buffer.waiting(context) if one.ready]


def next_steps(context: Context, ids: Sequence[int]) -> list[NextStep]:
    """The messages that these batches' rows ask for now."""
    now = context.db.now()
    counted = _shard_counts(now)
    with context.db.read() as session:
        rows = session.execute(select(BATCHES).where(BATCHES.c.id.in_(ids)).order_by(BATCHES.c.id)).all()
        analysed = [row.id for row in rows if row.status == WorkStatus.RUNNING and row.step == Step.ANALYSE]
        query = select(SHARDS.c.batch_id, *counted).where(SHARDS.c.batch_id.in_(analysed)).group_by(SHARDS.c.batch_id)
        shards = {row.batch_id: row for row in session.execute(query)} if analysed else {}
    open_to = routes(context) if rows else None
    return [one for row in rows if open_to and (one := _next_step(row, shards.get(row.id), open_to, now))]


def _shard_counts(now: datetime) -> list[ColumnElement[int]]:
    """How many of a batch's shards are due, held, or not due yet through no fault of theirs."""
    claimable = in_states(SHARDS, CLAIMABLE)
    which = {
        "due": and_(claimable, is_due(SHARDS, now)),
        "held": SHARDS.c.status == WorkStatus.RUNNING,
        "open": SHARDS.c.status.in_([WorkStatus.RUNNING, WorkStatus.PENDING]),
    }
    return [func.sum(case((condition, 1), else_=0)).label(name) for name, condition in which.items()]


def _next_step(row: Any, shards: Any | None, open_to: Routes, now: datetime) -> NextStep | None:
    urgency = row.urgency or URGENT
    if row.status in CLAIMABLE and (row.next_run_at is None or row.next_run_at <= now):
        if row.step == Step.EXPAND:
            return NextStep(row.id, Action.EXPAND, open_to.expand, priority=priority(open_to.expand, urgency))
        return NextStep(row.id, Action.BEGIN) if row.urgency is not None else None
    if row.status != WorkStatus.RUNNING or row.step != Step.ANALYSE:
        return None
    if shards is not None and shards.due:
        # A place for each message: for those at work, too.
        places = shards.due + shards.held
        return NextStep(row.id, Action.ANALYSE, open_to.analyse, places, priority(open_to.analyse, urgency))
    return NextStep(row.id, Action.MERGE) if shards is None or not shards.open else None


def priority(queue: str, urgency: int) -> int:
    """How urgent a message is. Only in the flow's own queues one lets others pass: elsewhere it would never have a turn
    while another flow is busy."""
    return urgency if queue in {SCREENSHOT_VISION, SCREENSHOT_TEXT} else URGENT


def take_turns(context: Context) -> list[int]:
    """Give free places to batches whose turn it is, new and old ones by turns; their ids.

    Rules: docs/sources/screenshots.md#scan.
    """
    rules = screenshots_in_force(context)
    turn = _turn(context)

    def act(tx: Tx) -> tuple[list[int], int]:
        return _to_analyse(tx, rules, turn)

    picked, after = context.db.run(act)
    if after != turn and context.online:
        _note_turn(context, after)
    return picked


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


def _to_analyse(tx: ReadTx, rules: ScreenshotSettings, turn: int) -> tuple[list[int], int]:
    """Pick batches for the places that are free, half from the newest and half from the oldest."""
    free = places(rules) - _under_way(tx, Step.ANALYSE)
    behind = _under_way(tx, Step.EXPAND) - places(rules) - rules.text_concurrency
    free = min(free, -behind)
    if free <= 0:
        return [], turn
    columns = (BATCHES.c.id, BATCHES.c.attempts, BATCHES.c.created_at)
    limit = max(rules.scan_limit, 2 * free)
    query = select(*columns).where(_unpicked(tx.now)).limit(limit)
    newest = tx.execute(query.order_by(BATCHES.c.created_at.desc(), BATCHES.c.id.desc())).all()
    oldest = tx.execute(query.order_by(BATCHES.c.created_at, BATCHES.c.id)).all()
    rows: list[Any] = scanned(newest, oldest, limit)
    weights = {Track.REALTIME: rules.realtime_weight, Track.RECOVERY: rules.recovery_weight}
    picked, after = pick(rows, free, tx.now, rules.recovery_age_s, weights, turn)
    # Beside new batches, an old one has a turn of its own and is as urgent, or it might wait in a queue for ever.
    filler = all(track_of(row.attempts, row.created_at, tx.now, rules.recovery_age_s) is Track.RECOVERY for row in rows)
    urgency = FILLER if filler else URGENT
    # Looked at again: somebody else may have picked them just now.
    mine = (
        update(BATCHES).where(BATCHES.c.id.in_([row.id for row in picked]), _unpicked(tx.now)).values(urgency=urgency)
    )
    taken = set(tx.execute(mine.returning(BATCHES.c.id)).scalars()) if picked else set()
    return [row.id for row in picked if row.id in taken], after


def _unpicked(now: datetime) -> ColumnElement[bool]:
    waits = and_(in_states(BATCHES, CLAIMABLE), is_due(BATCHES, now))
    return and_(BATCHES.c.step == Step.ANALYSE, BATCHES.c.urgency.is_(None), waits)


def _waiting_in(step: Step) -> ColumnElement[bool]:
    """A batch in this step asks for a message, if it is due: to be analysed, once its turn has come."""
    claimable = and_(in_states(BATCHES, CLAIMABLE), BATCHES.c.step == step)
    return and_(claimable, BATCHES.c.urgency.is_not(None)) if step is Step.ANALYSE else claimable


def _under_way(tx: ReadTx, step: Step) -> int:
    """Batches in this step that somebody works on, or that ask for it."""
    mine = BATCHES.c.step == step
    waiting = and_(mine, _waiting_in(step), is_due(BATCHES, tx.now))
    running = and_(mine, BATCHES.c.status == WorkStatus.RUNNING)
    # One after the other: for an OR, databases read the whole table.
    counts = (tx.execute(select(func.count()).where(which)).scalar_one() for which in (waiting, running))
    return sum(counts)


def due(context: Context) -> list[str]:
    """What may have something to do because of the time: frames that waited long enough for a batch come first."""
    now = context.db.now()
    with context.db.read() as session:
        waited = (
            select(BATCHES.c.id).where(in_states(BATCHES, CLAIMABLE), BATCHES.c.next_run_at <= now),
            select(SHARDS.c.batch_id).where(in_states(SHARDS, CLAIMABLE), SHARDS.c.next_run_at <= now),
        )
        ids = {batch_id for query in waited for batch_id in session.execute(query).scalars()}
    return [*ready_buffers(context), *Scope.all(), *map(scope_of, sorted(ids))]


def runnable(context: Context, shut: Collection[str]) -> Iterator[str]:
    """Every scope that has something to do now, but for batches that wait for these closed queues only."""
    yield from ready_buffers(context)
    yield from Scope.all()
    open_to, now = routes(context), context.db.now()
    mine = SHARDS.c.batch_id == BATCHES.c.id
    shards = select(SHARDS.c.id).where(mine)
    asked_for = shards.where(in_states(SHARDS, CLAIMABLE), is_due(SHARDS, now)).exists()
    ended = ~shards.where(SHARDS.c.status.in_([WorkStatus.PENDING, WorkStatus.RUNNING])).exists()
    running = and_(BATCHES.c.status == WorkStatus.RUNNING, BATCHES.c.step == Step.ANALYSE)
    analyse = ended if open_to.analyse in shut else or_(asked_for, ended)
    steps = [Step.ANALYSE] if open_to.expand in shut else [Step.ANALYSE, Step.EXPAND]
    # Steps are asked for one after the other: for an OR, databases read the whole table.
    for which in (and_(running, analyse), *(and_(_waiting_in(step), is_due(BATCHES, now)) for step in steps)):
        after = 0
        while ids := _next_ids(context, which, after):
            yield from map(scope_of, ids)
            after = ids[-1]


def _next_ids(context: Context, which: ColumnElement[bool], after: int) -> Sequence[int]:
    query = select(BATCHES.c.id).where(which, BATCHES.c.id > after).order_by(BATCHES.c.id).limit(PORTION)
    with context.db.read() as session:
        return session.execute(query).scalars().all()


def next_wait_s(context: Context) -> float | None:
    """Seconds until something that waits is due, or a buffer makes a batch; None if nothing waits."""
    waits = (next_retry_s(context), buffer.next_look_s(context))
    return min((wait for wait in waits if wait is not None), default=None)


def next_retry_s(context: Context) -> float | None:
    """Seconds until the next batch, shard, merge or vector is due, if one waits."""
    now = context.db.now()
    with context.db.read() as session:
        queries = (select(func.min(table.c.next_run_at)).where(table.c.next_run_at > now) for table in WAITING)
        due = [at for query in queries if (at := session.execute(query).scalar())]
    return (min(due) - now).total_seconds() if due else None

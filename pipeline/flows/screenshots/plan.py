"""Derives from the rows which messages are due now, and their queues. Capture, retry, replay and recovery use it."""

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
"""Redis key of the current turn. If Redis loses it, turns start over with realtime."""
PORTION = 500
URGENT, FILLER = 0, 3
"""Priorities of messages in Redis: steps of three, the lowest number first. FILLER: an old batch in a place that no new
batch needed, which lets later batches pass it in the queues."""
WAITING = (BATCHES, SHARDS, NODES, EMBEDDINGS)
"""Tables whose rows may wait for their own `next_run_at`."""
ANYTHING = anything(
    WAITING,
    *((table, in_states(table, CLAIMABLE)) for table in (BATCHES, NODES, EMBEDDINGS)),
    (BATCHES, in_states(BATCHES, [WorkStatus.RUNNING])),
    (SHOTS, buffer.buffered()),
)
"""Whether a frame waits for a batch, or a batch, a node or a vector has work left."""


@dataclass(frozen=True)
class Routes:
    """The queues of messages now."""

    analyse: str
    expand: str
    embed: str

    @property
    def merge(self) -> str:
        """The queue of merges, which is the queue of expansion."""
        return self.expand


def routes(context: Context) -> Routes:
    """Choose the queues of messages by the breakers.

    Frames wait while the vision provider is down, unless a fallback or this machine stands in. Expansion continues
    without a text model (docs/sources/screenshots.md#expansion), because the model only adds to the segments.
    """
    own = context.settings.screenshots
    analyse = expand = CONTROL
    if not own.vision_provider:
        analyse = CPU
    else:
        provider = fallbacks.stand_in(context, own.vision_provider, "vision", local=True)
        named = {LOCAL: CPU, own.vision_provider: SCREENSHOT_VISION}
        analyse = named.get(provider) or fallbacks.stand_in_queue(provider)
    if own.text_provider:
        provider = fallbacks.stand_in(context, own.text_provider, "text", local=False)
        if provider != own.text_provider:
            expand = fallbacks.stand_in_queue(provider)
        elif not gates.is_open(context, own.text_provider, "text"):
            expand = SCREENSHOT_TEXT
    embed = SCREENSHOT_EMBEDDINGS if own.embeddings_provider else CONTROL
    return Routes(analyse, expand, embed)


class Action(StrEnum):
    """The next action for a batch."""

    BEGIN = "begin"
    ANALYSE = "analyse"
    MERGE = "merge"
    """All its shards have ended."""
    EXPAND = "expand"


@dataclass(frozen=True)
class NextStep:
    """The messages that a batch's rows ask for now, including messages already on their way."""

    batch_id: int
    action: Action
    queue: str = CONTROL
    places: int = 1
    priority: int = URGENT


def buffers(context: Context, scopes: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield (source, flush) for each buffer among these scopes that makes a batch now. `flush`: True to batch all its
    frames at once."""
    requested = buffers_among(scopes)
    for waiting in buffer.waiting(context) if requested else ():
        if waiting.ready and buffer_of(waiting.source) in requested:
            yield waiting.source, False
        if buffer_of(waiting.source, flush=True) in requested:
            yield waiting.source, True


def ready_buffers(context: Context) -> list[str]:
    """Return the scopes of the sources whose frames make a batch now."""
    return [buffer_of(waiting.source) for waiting in buffer.waiting(context) if waiting.ready]


def next_steps(context: Context, ids: Sequence[int]) -> list[NextStep]:
    """Return the messages that these batches' rows ask for now, also those already on their way: at most one kind for
    each batch."""
    now = context.db.now()
    counted = _shard_counts(now)
    with context.db.read() as session:
        rows = session.execute(select(BATCHES).where(BATCHES.c.id.in_(ids)).order_by(BATCHES.c.id)).all()
        analysed = [row.id for row in rows if row.status == WorkStatus.RUNNING and row.step == Step.ANALYSE]
        query = select(SHARDS.c.batch_id, *counted).where(SHARDS.c.batch_id.in_(analysed)).group_by(SHARDS.c.batch_id)
        shards = {row.batch_id: row for row in session.execute(query)} if analysed else {}
    open_to = routes(context) if rows else None
    return [step for row in rows if open_to and (step := _next_step(row, shards.get(row.id), open_to, now))]


def _shard_counts(now: datetime) -> list[ColumnElement[int]]:
    """Count a batch's shards that are due, claimed, or open: claimed or pending."""
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
        # Claimed shards keep their messages' places.
        places = shards.due + shards.held
        return NextStep(row.id, Action.ANALYSE, open_to.analyse, places, priority(open_to.analyse, urgency))
    return NextStep(row.id, Action.MERGE) if shards is None or not shards.open else None


def priority(queue: str, urgency: int) -> int:
    """Return the priority of a message with this urgency, in Redis's steps. In queues of other flows it is always
    urgent: a filler would wait there as long as another flow is busy."""
    return urgency if queue in {SCREENSHOT_VISION, SCREENSHOT_TEXT} else URGENT


def take_turns(context: Context) -> list[int]:
    """Give free places in the analysis to new and old batches by turns; return the ids of the batches that got one.
    Without Redis, the turns start over.

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


def _to_analyse(tx: Tx, rules: ScreenshotSettings, turn: int) -> tuple[list[int], int]:
    """Pick batches for the free places among the newest and the oldest; return their ids and the next turn.

    A batch keeps its place until its nodes are written or it waits for a retry, and an expansion that was tried before
    starts without a place: it must not wait for a vision model that is down.
    """
    if tx.get_bind().dialect.name != "sqlite":  # which has one writer anyway
        tx.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(TURN, 0))))
    free = rules.batch_workers - _under_way(tx, Step.ANALYSE) - _under_way(tx, Step.EXPAND)
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
    # Beside new batches, an old batch is as urgent on its turn: as a filler it might wait in a queue forever.
    filler = all(track_of(row.attempts, row.created_at, tx.now, rules.recovery_age_s) is Track.RECOVERY for row in rows)
    urgency = FILLER if filler else URGENT
    # Check the rows in the update: another process may have picked them since the query.
    picks = (
        update(BATCHES).where(BATCHES.c.id.in_([row.id for row in picked]), _unpicked(tx.now)).values(urgency=urgency)
    )
    batch_ids = set(tx.execute(picks.returning(BATCHES.c.id)).scalars()) if picked else set()
    return [row.id for row in picked if row.id in batch_ids], after


def _unpicked(now: datetime) -> ColumnElement[bool]:
    waits = and_(in_states(BATCHES, CLAIMABLE), is_due(BATCHES, now))
    return and_(BATCHES.c.step == Step.ANALYSE, BATCHES.c.urgency.is_(None), waits)


def _waiting_in(step: Step) -> ColumnElement[bool]:
    """Return the condition on batches in this step that need a message as soon as they are due; in the analysis, only
    batches that got their turn."""
    claimable = and_(in_states(BATCHES, CLAIMABLE), BATCHES.c.step == step)
    return and_(claimable, BATCHES.c.urgency.is_not(None)) if step is Step.ANALYSE else claimable


def _under_way(tx: ReadTx, step: Step) -> int:
    """Count the batches in this step that are running or due, in the analysis without those that wait for their
    turn."""
    in_step = BATCHES.c.step == step
    waiting = and_(in_step, _waiting_in(step), is_due(BATCHES, tx.now))
    running = and_(in_step, BATCHES.c.status == WorkStatus.RUNNING)
    # Two queries: for an OR, databases read the whole table.
    counts = (tx.execute(select(func.count()).where(which)).scalar_one() for which in (waiting, running))
    return sum(counts)


def due(context: Context) -> list[str]:
    """Return the scopes that are due by now: buffers that make a batch, then `Scope.all()`, then batches whose wait
    before a retry is over.

    Includes `Scope.all()` even without work there.
    """
    now = context.db.now()
    with context.db.read() as session:
        waited = (
            select(BATCHES.c.id).where(in_states(BATCHES, CLAIMABLE), BATCHES.c.next_run_at <= now),
            select(SHARDS.c.batch_id).where(in_states(SHARDS, CLAIMABLE), SHARDS.c.next_run_at <= now),
        )
        ids = {batch_id for query in waited for batch_id in session.execute(query).scalars()}
    return [*ready_buffers(context), *Scope.all(), *map(scope_of, sorted(ids))]


def runnable(context: Context, closed_queues: Collection[str]) -> Iterator[str]:
    """Yield every scope that has work now, except batches that wait only for `closed_queues`.

    Always includes `Scope.all()`, even without work there.
    """
    yield from ready_buffers(context)
    yield from Scope.all()
    open_to, now = routes(context), context.db.now()
    shards = select(SHARDS.c.id).where(SHARDS.c.batch_id == BATCHES.c.id)
    asked_for = shards.where(in_states(SHARDS, CLAIMABLE), is_due(SHARDS, now)).exists()
    ended = ~shards.where(SHARDS.c.status.in_([WorkStatus.PENDING, WorkStatus.RUNNING])).exists()
    running = and_(BATCHES.c.status == WorkStatus.RUNNING, BATCHES.c.step == Step.ANALYSE)
    analyse = ended if open_to.analyse in closed_queues else or_(asked_for, ended)
    steps = [Step.ANALYSE] if open_to.expand in closed_queues else [Step.ANALYSE, Step.EXPAND]
    # One query for each step: for an OR, databases read the whole table.
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
    """Return the seconds until the next retry or the next buffer's timeout; None if nothing waits. Ignores what is due
    already."""
    waits = (next_retry_s(context), buffer.next_batch_s(context))
    return min((wait for wait in waits if wait is not None), default=None)


def next_retry_s(context: Context) -> float | None:
    """Return the seconds until the next retry of a batch, shard, merge or vector; None if none waits. Ignores rows that
    are due already."""
    now = context.db.now()
    with context.db.read() as session:
        queries = (select(func.min(table.c.next_run_at)).where(table.c.next_run_at > now) for table in WAITING)
        due = [at for query in queries if (at := session.execute(query).scalar())]
    return (min(due) - now).total_seconds() if due else None

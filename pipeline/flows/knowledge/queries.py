"""Reads of bases, items, chunks and the queues of bases."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from redis import RedisError
from sqlalchemy import ColumnElement, and_, case, func, or_, select, true, tuple_
from sqlalchemy.orm import Session

from pipeline.engine.claims import in_states, is_due
from pipeline.engine.errors import UserError
from pipeline.engine.launch import Places
from pipeline.engine.presence import Presence
from pipeline.engine.tables import mentions, portions
from pipeline.engine.transaction import ReadTx
from pipeline.engine.views import view_of
from pipeline.flows.knowledge import live_settings
from pipeline.flows.knowledge.live_settings import embeddings_queue
from pipeline.flows.knowledge.models import BASES, BATCHES, CHUNKS, ITEMS
from pipeline.flows.knowledge.states import FLOW, OPEN, ItemStatus, ItemType, Loss
from pipeline.flows.knowledge.views import (
    Activity,
    BaseView,
    ChunkView,
    FlowStatus,
    GroupView,
    ItemView,
    QueueStatus,
    Standing,
    Tally,
    heading_of,
)
from pipeline.providers import gates
from pipeline.storage.context import Context

PRESENT = ITEMS.c.deleting.is_(False)


class UnknownBase(UserError):
    """No base has this id or name."""

    def __init__(self, base_id: str) -> None:
        super().__init__(f"there is no knowledge base {base_id}; see `penstock kb list`", code="unknown_base")


class UnknownItem(UserError):
    """No item has this id."""

    def __init__(self, item_id: str) -> None:
        super().__init__(f"there is no knowledge item {item_id}", code="unknown_item")


def base_row(session: Session, name_or_id: str, *, lock: bool = False) -> Any:
    """Return a base's row by its id or its name; an id takes precedence. `lock`: until the transaction ends.

    Raises `UnknownBase`, also for a base being deleted.
    """
    query = select(BASES).where(or_(BASES.c.id == name_or_id, BASES.c.name == name_or_id), BASES.c.deleting.is_(False))
    rows = session.execute(query.with_for_update() if lock else query).all()
    # An id takes precedence over a name that equals it.
    for row in sorted(rows, key=lambda row: row.id != name_or_id):
        return row
    raise UnknownBase(name_or_id)


def base(context: Context, name_or_id: str) -> BaseView:
    with context.db.read() as session:
        return view_of(BaseView, base_row(session, name_or_id))


def bases(context: Context) -> list[BaseView]:
    """Return every base, also those being deleted, by name."""
    with context.db.read() as session:
        return [view_of(BaseView, row) for row in session.execute(select(BASES).order_by(BASES.c.name))]


def item(context: Context, item_id: str) -> ItemView:
    """Return an item, also one being deleted as long as its row exists. Raises `UnknownItem`."""
    with context.db.read() as session:
        row = session.execute(select(ITEMS).where(ITEMS.c.id == item_id)).one_or_none()
    if row is None:
        raise UnknownItem(item_id)
    return item_view(row)


def item_view(row: Any) -> ItemView:
    return view_of(
        ItemView, row, type=ItemType(row.type), status=ItemStatus(row.status), loss=row.loss and Loss(row.loss)
    )


class Which(TypedDict, total=False):
    """Conditions on items of a base; an absent key matches all."""

    status: Sequence[str]
    types: Sequence[str]
    group_id: str
    alone: bool
    """Only items without a folder."""
    words: str
    limit: int


def items(
    context: Context, base_id: str, *, after: tuple[int, str] | None = None, **which: Unpack[Which]
) -> list[ItemView]:
    """Return items of a base in the order of its line, also those being deleted; 500 unless `limit` is given.

    `after`: start behind this (position, id). Raises `UnknownBase`.
    """
    order = (ITEMS.c.position, ITEMS.c.id)
    with context.db.read() as session:
        query = select(ITEMS).where(*_conditions(session, base_id, which)).order_by(*order)
        query = query.where(tuple_(*order) > tuple_(*after)) if after else query
        return [item_view(row) for row in session.execute(query.limit(which.get("limit", 500)))]


def _conditions(session: Session, base_id: str, which: Which) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [ITEMS.c.base_id == base_row(session, base_id).id]
    conditions += [ITEMS.c.status.in_(status)] if (status := which.get("status")) else []
    conditions += [ITEMS.c.type.in_(types)] if (types := which.get("types")) else []
    conditions += [ITEMS.c.group_id == group] if (group := which.get("group_id")) else []
    conditions += [ITEMS.c.group_id.is_(None)] if which.get("alone") else []
    if words := which.get("words"):
        conditions += [or_(mentions(ITEMS.c.name, words), mentions(ITEMS.c.title, words))]
    return conditions


def matching(context: Context, base_id: str, *, after: str = "", **which: Unpack[Which]) -> tuple[list[str], int]:
    """Return (ids of matching items that are not being deleted, behind the id `after`; how many match in all).

    Sorts by id: reprocessing changes places in line, so a walk along the line would return items twice.
    Returns 500 ids unless `limit` is given.
    """
    with context.db.read() as session:
        conditions = [*_conditions(session, base_id, which), PRESENT]
        query = select(ITEMS.c.id).where(*conditions, ITEMS.c.id > after).order_by(ITEMS.c.id)
        count = session.execute(select(func.count()).select_from(ITEMS).where(*conditions)).scalar_one()
        return list(session.execute(query.limit(which.get("limit", 500))).scalars()), int(count)


def group_id(context: Context, base_id: str, name: str) -> str:
    """Return the group id of the base's folder with this name; empty if it has none."""
    query = select(ITEMS.c.group_id).where(ITEMS.c.base_id == base_id, ITEMS.c.group_name == name, PRESENT).limit(1)
    with context.db.read() as session:
        return session.execute(query).scalar() or ""


def groups(context: Context, base_id: str, limit: int) -> list[GroupView]:
    """Return up to `limit` folders of a base with the tallies of their items, by name; leave out items being deleted.
    Raises `UnknownBase`."""
    c = ITEMS.c
    ended = case((c.status == ItemStatus.FAILED, 100), else_=c.progress)
    with context.db.read() as session:
        of_base = and_(c.base_id == base_row(session, base_id).id, c.group_id.is_not(None), PRESENT)
        name = func.max(c.group_name).label("name")
        first = select(c.group_id, name).where(of_base).group_by(c.group_id).order_by(name, c.group_id).limit(limit)
        names = {row.group_id: row.name for row in session.execute(first)}
        states: dict[str, dict[str, int]] = {group: {} for group in names}
        progress = dict.fromkeys(names, 0)
        query = select(c.group_id, c.status, func.count(), func.sum(ended)).where(of_base, c.group_id.in_(names))
        for group, state, count, percent in session.execute(query.group_by(c.group_id, c.status)):
            states[group][state] = count
            progress[group] += int(percent)
    return [
        GroupView(group, name or group, Tally(states[group], progress[group] // (sum(states[group].values()) or 1)))
        for group, name in names.items()
    ]


def counts(context: Context, base_ids: Sequence[str] | None = None) -> dict[str, dict[str, int]]:
    """Count the items of these bases, or of all, by the base's id and by state, also those being deleted; leave out
    bases and states without items."""
    query = select(ITEMS.c.base_id, ITEMS.c.status, func.count()).group_by(ITEMS.c.base_id, ITEMS.c.status)
    if base_ids is not None:
        query = query.where(ITEMS.c.base_id.in_(base_ids))
    by_base: dict[str, dict[str, int]] = {}
    with context.db.read() as session:
        for base_id, status, count in session.execute(query):
            by_base.setdefault(base_id, {})[status] = count
    return by_base


def chunk_counts(context: Context) -> dict[str, int]:
    """Count the chunks of each base, by the base's id: those of its items' latest readings, even of readings that are
    not searchable yet."""
    query = select(ITEMS.c.base_id, func.sum(ITEMS.c.chunk_count)).where(PRESENT).group_by(ITEMS.c.base_id)
    with context.db.read() as session:
        return {base_id: int(count) for base_id, count in session.execute(query)}


def tally(context: Context, base_id: str, item_ids: Sequence[str] | None = None) -> Tally:
    """Return the tally of a base's items, or of `item_ids` among them; leave out items being deleted.

    A failed item counts as 100 % in the mean. Raises `UnknownBase`.
    """
    states: dict[str, int] = {}
    progress = 0
    with context.db.read() as session:
        base = base_row(session, base_id)
        for portion in [None] if item_ids is None else portions(item_ids):
            query = select(ITEMS.c.status, func.count(), func.sum(ITEMS.c.progress)).where(
                ITEMS.c.base_id == base.id, PRESENT, ITEMS.c.id.in_(portion) if portion is not None else true()
            )
            for state, count, percent in session.execute(query.group_by(ITEMS.c.status)):
                states[state] = states.get(state, 0) + count
                # A failed item has ended, so it counts as 100 %.
                progress += 100 * count if state == ItemStatus.FAILED else int(percent)
    return Tally(states, progress // (sum(states.values()) or 1))


def chunks(context: Context, item_id: str, *, first: int = 0, limit: int = 200) -> list[ChunkView]:
    """Return an item's searchable chunks in the order of its text, from number `first` on; empty for an unknown
    item."""
    query = (
        select(CHUNKS)
        .join(ITEMS, (ITEMS.c.id == CHUNKS.c.item_id) & (ITEMS.c.generation == CHUNKS.c.generation))
        .where(CHUNKS.c.item_id == item_id, CHUNKS.c.number >= first)
        .order_by(CHUNKS.c.number)
        .limit(limit)
    )
    with context.db.read() as session:
        return [view_of(ChunkView, row, heading=heading_of(row.heading)) for row in session.execute(query)]


def standings(context: Context, item_ids: Sequence[str]) -> dict[str, Standing]:
    """Return the activity of those of these items that have not ended, by id, from rows, workers' presence and
    messages.

    While Redis does not answer, no worker counts as alive: items in line, and most of the others, are then STALLED.
    """
    columns = (
        ITEMS.c.id,
        ITEMS.c.base_id,
        ITEMS.c.position,
        ITEMS.c.status,
        ITEMS.c.admitted_at,
        ITEMS.c.worker_id,
        ITEMS.c.next_run_at,
        ITEMS.c.error,
        ITEMS.c.batches_left,
    )
    rows: list[Any] = []
    with context.db.read() as session:
        for portion in portions(item_ids):
            rows += session.execute(
                select(*columns).where(ITEMS.c.id.in_(portion), in_states(ITEMS, OPEN), PRESENT)
            ).all()
        under_way = [row.id for row in rows if row.admitted_at is not None]
        workers = _workers(session, rows, under_way)
        waits = _waits(session, under_way)
        places = {row.id: _place(session, row) for row in rows if row.admitted_at is None}
        crowded = _crowded_out(session, rows)
    alive, sent = _fleet(context, {name for names in workers.values() for name in names}, under_way)
    by_id, now = {}, context.db.now()
    for row in rows:
        is_later = row.next_run_at is not None and row.next_run_at > now
        if row.admitted_at is None and is_later:
            by_id[row.id] = Standing(row.id, Activity.WAITING, reason=row.error or "")
        elif row.admitted_at is None:
            by_id[row.id] = Standing(row.id, Activity.IN_LINE if alive else Activity.STALLED, places[row.id])
        elif any(name in alive for name in workers.get(row.id, ())):
            by_id[row.id] = Standing(row.id, Activity.RUNNING)
        elif row.id in waits or is_later:
            by_id[row.id] = Standing(row.id, Activity.WAITING, reason=waits.get(row.id) or row.error or "")
        elif row.id in crowded:
            by_id[row.id] = Standing(row.id, Activity.WAITING, reason="as many items are written as may be")
        elif row.id in sent:
            by_id[row.id] = Standing(row.id, Activity.QUEUED, reason=_gate(context, row))
        else:
            reason = _gate(context, row)
            by_id[row.id] = Standing(row.id, Activity.WAITING if reason else Activity.STALLED, reason=reason)
    return by_id


def _workers(session: Session, rows: Sequence[Any], under_way: Sequence[str]) -> dict[str, list[str]]:
    """Return the processes that hold claims on each item or on its batches, by item id."""
    by_item = {row.id: [row.worker_id] for row in rows if row.worker_id}
    held = select(BATCHES.c.item_id, BATCHES.c.worker_id).where(
        BATCHES.c.claim_id.is_not(None), BATCHES.c.item_id.in_(under_way)
    )
    for item_id, worker_id in session.execute(held):
        by_item.setdefault(item_id, []).append(worker_id)
    return by_item


def _waits(tx: ReadTx, under_way: Sequence[str]) -> dict[str, str]:
    """Return the error of a batch that waits for a retry, by item id."""
    waits = select(BATCHES.c.item_id, BATCHES.c.error).where(
        BATCHES.c.next_run_at > tx.now, BATCHES.c.item_id.in_(under_way)
    )
    return {item_id: error or "" for item_id, error in tx.execute(waits)}


def _crowded_out(tx: ReadTx, rows: Sequence[Any]) -> set[str]:
    """Return the items that wait until others have written their vectors. See `knowledge.write_concurrency`."""
    ready = {row.id for row in rows if row.status == ItemStatus.EMBEDDING and row.batches_left == 0}
    if not ready:
        return ready
    writable = (ITEMS.c.admitted_at.is_not(None), ITEMS.c.status == ItemStatus.EMBEDDING, ITEMS.c.batches_left == 0)
    busy = select(func.count()).select_from(ITEMS).where(*writable, ITEMS.c.claim_id.is_not(None))
    most = live_settings.in_force_in(tx).write_concurrency
    room = max(0, most - int(tx.execute(busy).scalar_one()))
    first = select(ITEMS.c.id).where(*writable, ITEMS.c.claim_id.is_(None))
    order = (ITEMS.c.admitted_at, ITEMS.c.position, ITEMS.c.id)
    return ready - set(tx.execute(first.order_by(*order).limit(room)).scalars())


def _place(session: Session, row: Any) -> int:
    before = (
        select(func.count())
        .select_from(ITEMS)
        .where(
            ITEMS.c.base_id == row.base_id,
            ITEMS.c.status == ItemStatus.PENDING,
            ITEMS.c.admitted_at.is_(None),
            PRESENT,
            ITEMS.c.position < row.position,
        )
    )
    return int(session.execute(before).scalar_one()) + 1


def _fleet(context: Context, holders: set[str], under_way: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return (live processes, those of `holders` included; ids of items with a message on its way).

    Both are empty while Redis does not answer.
    """
    if not context.online:
        return set(), set()
    try:
        presence = Presence(context.redis)
        sent = Places(context.redis).known([place_of(item_id) for item_id in under_way])
        return presence.alive() | presence.living(holders), {scope.rpartition(":")[2] for scope in sent}
    except RedisError:
        return set(), set()


def place_of(item_id: str) -> str:
    """Return the name under which an item's messages take places."""
    return f"{FLOW}:{item_id}"


def _gate(context: Context, row: Any) -> str:
    """Return why the gate of the item's next step is closed; empty if it is open, or while Redis is down."""
    if row.status != ItemStatus.EMBEDDING:
        return ""
    query = select(BATCHES.c.provider).where(BATCHES.c.item_id == row.id).limit(1)
    with context.db.read() as session:
        provider = session.execute(query).scalar()
    queue = embeddings_queue(provider) if provider else ""
    return gates.closed_because(context, queue) if context.online else ""


def queue(context: Context, base_id: str) -> QueueStatus:
    """Return a base's queue: how many items are in line and under way, the ids of those under way that are not stalled,
    and the ids of orphans: stalled items under way, and the whole line if its first item is stalled. Raises
    `UnknownBase`."""
    columns = (ITEMS.c.id, ITEMS.c.admitted_at, is_due(ITEMS, context.db.now()).label("due"))
    open_ = select(*columns).where(in_states(ITEMS, OPEN), PRESENT).order_by(ITEMS.c.position)
    with context.db.read() as session:
        base = base_row(session, base_id)
        rows = session.execute(open_.where(ITEMS.c.base_id == base.id)).all()
    active = [row.id for row in rows if row.admitted_at is not None]
    line = [row.id for row in rows if row.admitted_at is None and row.due]
    current = standings(context, [*active, *line[:1]])
    orphans = [item_id for item_id in active if _stalled(current, item_id)]
    orphans += line if line and _stalled(current, line[0]) else []
    return QueueStatus(
        base.id, len(rows) - len(active), len(active), [key for key in active if key not in orphans], orphans
    )


def _stalled(current: Mapping[str, Standing], item_id: str) -> bool:
    return item_id in current and current[item_id].activity is Activity.STALLED


def status(context: Context) -> FlowStatus:
    """Return how many items are in line, in all and by base, and how many are under way. Rule:
    docs/sources/knowledge.md#fairness."""
    line = (ITEMS.c.status == ItemStatus.PENDING, ITEMS.c.admitted_at.is_(None), PRESENT)
    with context.db.read() as session:
        of_base = select(ITEMS.c.base_id, func.count()).where(*line).group_by(ITEMS.c.base_id)
        per_base = {base_id: count for base_id, count in session.execute(of_base)}  # noqa: C416  # rows are not pairs
        under_way = select(func.count()).select_from(ITEMS).where(ITEMS.c.admitted_at.is_not(None))
        return FlowStatus(sum(per_base.values()), int(session.execute(under_way).scalar_one()), per_base)

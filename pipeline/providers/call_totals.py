"""Totals of all calls ever made, read quickly: sums that only grow, even when calls on record are deleted.

The totals contain every call up to a cursor; readers add the few calls beyond it in the same statement. If retention
deletes calls that the cursor has not reached, it adds them to the totals. So each call counts exactly once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, Text, and_, case, cast, delete, func, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from pipeline.engine.tables import insert_if_absent, table_of
from pipeline.engine.traces import AiCall, CallCursor, CallTotal
from pipeline.engine.transaction import Tx
from pipeline.storage.context import Context

CALLS, TOTALS, CURSOR = table_of(AiCall), table_of(CallTotal), table_of(CallCursor)
EDGES_MS = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000)
"""Steps of latency by which calls are counted. A step may be added but never removed, since older totals use it."""
BEYOND = 0
"""The `le_ms` of calls slower than all steps."""
PORTION = 50_000
"""Calls that one transaction adds; it takes a twentieth of a second."""
_MOST_NANO = 10**12
"""A call that claims a higher or negative cost counts as free."""
_KEY = ("flow", "provider", "capability", "status", "le_ms")
_SUMS = ("calls", "latency_ms", "input_tokens", "output_tokens", "cost_nano")


@dataclass(frozen=True)
class Total:
    """Calls of one kind that took at most `le_ms` (0: longer than any step), and more than the previous step."""

    flow: str
    provider: str
    capability: str
    status: str
    le_ms: int
    calls: int
    latency_ms: int
    input_tokens: int
    output_tokens: int
    cost_nano: int


def totals(context: Context) -> list[Total]:
    """Return the totals of all calls ever recorded, by kind and latency. Later results are never lower."""
    with context.db.read() as session:
        counted = session.execute(select(func.max(CURSOR.c.counted_to))).scalar() or 0
        # By both: the number lets the database start at the right row, and the subquery is as current as the totals.
        now_counted = select(func.coalesce(func.max(CURSOR.c.counted_to), 0)).scalar_subquery()
        beyond = _summed(and_(CALLS.c.id > counted, CALLS.c.id > now_counted))
        sums_of: dict[tuple[Any, ...], list[int]] = {}
        for row in session.execute(select(*(TOTALS.c[name] for name in (*_KEY, *_SUMS))).union_all(beyond)):
            sums = sums_of.setdefault(tuple(row[: len(_KEY)]), [0] * len(_SUMS))
            for at, value in enumerate(row[len(_KEY) :]):
                sums[at] += int(value)
    return [Total(*key, *sums) for key, sums in sorted(sums_of.items())]


def advance(context: Context) -> int:
    """Add calls on record to the totals, in portions; return how many ids the cursor advanced. Safe to run in parallel.

    In PostgreSQL, calls may become visible out of the order of their ids. So the function first marks a place, and
    moves the cursor there only when every earlier transaction has ended.
    """
    moved = 0
    while True:
        # Before the marking transaction gets its number, so that transactions of earlier calls have lower numbers.
        with context.db.read() as session:
            newest = session.execute(select(func.coalesce(func.max(CALLS.c.id), 0))).scalar_one()
            place = session.execute(select(CURSOR.c.counted_to, CURSOR.c.next_to)).first() or (0, 0)
        if newest <= place[0]:
            return moved
        before = tuple(place)
        step = context.db.run(lambda tx, newest=newest: _advance(tx, newest))  # type: ignore[misc]
        if step[:2] == before:
            return moved
        moved += max(0, step[0] - before[0])


def remove(context: Context, ids: Sequence[int], still: ColumnElement[bool]) -> int:
    """Delete the calls with these ids that match `still`, after adding to the totals all of them that are not counted
    yet. Return how many it deleted."""

    def act(tx: Tx) -> int:
        counted, next_to, _ = _locked(tx)
        due = and_(CALLS.c.id.in_(ids), still)
        _add(tx, and_(due, CALLS.c.id > counted))
        deleted = len(tx.execute(delete(CALLS).where(due).returning(CALLS.c.id)).all())
        # SQLite reuses the ids of deleted newest rows.
        newest = tx.execute(select(func.coalesce(func.max(CALLS.c.id), 0))).scalar_one()
        if newest < next_to:
            tx.execute(update(CURSOR).values(counted_to=min(counted, newest), next_to=newest))
        return deleted

    return context.db.run(act)


def _advance(session: Session, newest: int) -> tuple[int, int]:
    """Add one portion, or mark one place; return the new (counted_to, next_to)."""
    counted, next_to, horizon = _locked(session)
    if session.get_bind().dialect.name == "sqlite":
        next_to = newest  # one writer at a time: ids become visible in order
    elif _xid(session, func.pg_snapshot_xmin(func.pg_current_snapshot())) <= horizon:
        return counted, next_to
    to = min(next_to, counted + PORTION)
    if to > counted:
        _add(session, and_(CALLS.c.id > counted, CALLS.c.id <= to))
    elif newest > next_to:
        next_to, horizon = newest, _xid(session, func.pg_current_xact_id())
    counted = max(counted, to)
    session.execute(update(CURSOR).values(counted_to=counted, next_to=max(counted, next_to), horizon=horizon))
    return counted, max(counted, next_to)


def _locked(session: Session) -> tuple[int, int, int]:
    """Lock the cursor until the transaction ends; return (counted_to, next_to, horizon)."""
    insert_if_absent(session, CURSOR, {"only": 1, "counted_to": 0, "next_to": 0, "horizon": 0})
    columns = (CURSOR.c.counted_to, CURSOR.c.next_to, CURSOR.c.horizon)
    counted, next_to, horizon = session.execute(select(*columns).with_for_update()).one()
    return counted, next_to, horizon


def _xid(session: Session, which: ColumnElement[Any]) -> int:
    # psycopg lacks this type and returns it as text.
    return int(session.execute(select(cast(which, Text))).scalar_one())


def _add(session: Session, which: ColumnElement[bool]) -> None:
    insert: Any = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    statement = insert(TOTALS).from_select([*_KEY, *_SUMS], _summed(which))
    more = {name: TOTALS.c[name] + statement.excluded[name] for name in _SUMS}
    session.execute(statement.on_conflict_do_update(index_elements=list(_KEY), set_=more))


def _summed(which: ColumnElement[bool]) -> Select[Any]:
    """Select the sums by kind and latency, in the order of `_KEY` and `_SUMS`."""
    c = CALLS.c
    believed = case((c.cost.between(0, _MOST_NANO / 10**9), cast(func.round(c.cost * 10**9), BigInteger)), else_=0)
    le_ms = case(*((c.latency_ms <= edge, edge) for edge in EDGES_MS), else_=BEYOND)
    of = (
        select(
            c.flow,
            c.provider,
            c.capability,
            c.status,
            le_ms.label("le_ms"),
            literal(1).label("calls"),
            c.latency_ms,
            c.input_tokens,
            c.output_tokens,
            believed.label("cost_nano"),
        )
        .where(which)
        .subquery()
        .c
    )
    sums = (cast(func.sum(case((of[name] > 0, of[name]), else_=0)), BigInteger).label(name) for name in _SUMS)
    key = [of[name] for name in _KEY]
    return select(*key, *sums).group_by(*key)

"""Figures of all calls that were ever made, read in little time: sums that only grow, though calls on record go.

The totals have every call up to a cursor, and whoever reads them adds the few beyond it in the same statement. Calls
that retention removes before the cursor has reached them are added as they go. So each call counts exactly once.
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
"""Calls are counted by their latency in these steps. One may be added; none may go, since older totals have it."""
BEYOND = 0
"""What `le_ms` is for calls that took longer than all of these."""
PORTION = 50_000
"""Calls that one transaction adds: a twentieth of a second."""
_MOST_NANO = 10**12
"""What a call that claims to have cost more, or less than nothing, is not believed: it counts as free."""
_KEY = ("flow", "provider", "capability", "status", "le_ms")
_SUMS = ("calls", "latency_ms", "input_tokens", "output_tokens", "cost_nano")


@dataclass(frozen=True)
class Total:
    """Calls of one kind that took at most `le_ms` (0: longer than any step), and more than the step before."""

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
    """All calls ever recorded. Of two answers, the later one is nowhere less."""
    with context.db.read() as session:
        counted = session.execute(select(func.max(CURSOR.c.counted_to))).scalar() or 0
        # By both: a number lets the database begin at the right place, and the row is as old as the totals are.
        now_counted = select(func.coalesce(func.max(CURSOR.c.counted_to), 0)).scalar_subquery()
        beyond = _summed(and_(CALLS.c.id > counted, CALLS.c.id > now_counted))
        found: dict[tuple[Any, ...], list[int]] = {}
        for row in session.execute(select(*(TOTALS.c[name] for name in (*_KEY, *_SUMS))).union_all(beyond)):
            sums = found.setdefault(tuple(row[: len(_KEY)]), [0] * len(_SUMS))
            for at, value in enumerate(row[len(_KEY) :]):
                sums[at] += int(value)
    return [Total(*key, *sums) for key, sums in sorted(found.items())]


def advance(context: Context) -> int:
    """Add calls on record to the totals, in portions; how many ids that took the cursor on. Two at once do no harm.

    With PostgreSQL, calls may become visible in another order than that of their ids. So a place is marked first, and
    the cursor only moves there when every transaction from before has ended.
    """
    moved = 0
    while True:
        # Before the transaction that marks it has a number: a call below the newest then has a lower one.
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


def removed(context: Context, ids: Sequence[int], still: ColumnElement[bool]) -> int:
    """Delete calls, if they match `still`; how many. Those that the totals lack are added to them."""

    def act(tx: Tx) -> int:
        counted, next_to, _ = _locked(tx)
        going = and_(CALLS.c.id.in_(ids), still)
        _add(tx, and_(going, CALLS.c.id > counted))
        gone = len(tx.execute(delete(CALLS).where(going).returning(CALLS.c.id)).all())
        # SQLite gives the ids of the newest rows again, once these are gone.
        newest = tx.execute(select(func.coalesce(func.max(CALLS.c.id), 0))).scalar_one()
        if newest < next_to:
            tx.execute(update(CURSOR).values(counted_to=min(counted, newest), next_to=newest))
        return gone

    return context.db.run(act)


def _advance(session: Session, newest: int) -> tuple[int, int]:
    """One portion, or one mark; (counted_to, next_to) afterwards."""
    counted, next_to, horizon = _locked(session)
    if session.get_bind().dialect.name == "sqlite":
        next_to = newest  # one writes at a time: ids become visible in their order
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
    """The cursor, which nobody else moves until the transaction ends: (counted_to, next_to, horizon)."""
    insert_if_absent(session, CURSOR, {"only": 1, "counted_to": 0, "next_to": 0, "horizon": 0})
    columns = (CURSOR.c.counted_to, CURSOR.c.next_to, CURSOR.c.horizon)
    counted, next_to, horizon = session.execute(select(*columns).with_for_update()).one()
    return counted, next_to, horizon


def _xid(session: Session, which: ColumnElement[Any]) -> int:
    # psycopg does not know the type: its numbers come as text.
    return int(session.execute(select(cast(which, Text))).scalar_one())


def _add(session: Session, which: ColumnElement[bool]) -> None:
    insert: Any = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    statement = insert(TOTALS).from_select([*_KEY, *_SUMS], _summed(which))
    more = {name: TOTALS.c[name] + statement.excluded[name] for name in _SUMS}
    session.execute(statement.on_conflict_do_update(index_elements=list(_KEY), set_=more))


def _summed(which: ColumnElement[bool]) -> Select[Any]:
    """Sums by kind and latency, in the order of `_KEY` and `_SUMS`."""
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

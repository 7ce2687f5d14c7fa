"""Events: changes of rows, recorded in the database by the transactions that made the changes.

So a crash after a commit loses no event. A transaction takes the numbers of its events last, just before the
commit, and holds the counter's row until it has committed: numbers become visible in order, without gaps, and a reader
that has seen 7 needs the numbers above 7. It may lock no row after that, or two transactions could deadlock: see
`storage.vectors.changes`, which takes its stamp before.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field, JsonValue
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Index,
    String,
    Table,
    Text,
    bindparam,
    case,
    event,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column

from pipeline.engine import announced
from pipeline.engine.announced import DELETED, Announced
from pipeline.engine.tables import Base, RowId, UtcDateTime, portions, storable, table_of
from pipeline.engine.transaction import Dispatch
from pipeline.engine.views import plain, view_of
from pipeline.engine.wire import example

MAX_TEXT = 500
"""The most characters of each text in an event's data."""


class EventRow(Base):
    """One change of a row, numbered."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_created_at", "created_at"), Index("ix_events_scope_id_seq", "scope_id", "seq"))

    seq: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=False)
    flow: Mapped[str] = mapped_column(String(40))
    type: Mapped[str] = mapped_column(String(80))
    """`kind.status`: `document.completed`."""
    kind: Mapped[str] = mapped_column(String(40))
    """The kind of row: `document`."""
    scope_id: Mapped[str] = mapped_column(String(64))
    """The row's id."""
    status: Mapped[str] = mapped_column(String(40))
    data: Mapped[str] = mapped_column(Text)
    """JSON: some columns of the row at that time."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """Never earlier than that of an event with a lower number."""


class EventCounter(Base):
    """The last event's number and time. One row, which outlives the events."""

    __tablename__ = "event_counter"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seq: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[datetime] = mapped_column(UtcDateTime)


EVENTS, COUNTER = table_of(EventRow), table_of(EventCounter)
_ONLY = 1


@dataclass(frozen=True)
class Event:
    """One change of a row, as the stream of events sends it too."""

    __pydantic_config__ = example(
        seq=4711,
        type="document.completed",
        flow="documents",
        kind="document",
        id="0123456789abcdef",
        status="completed",
        created_at="2026-11-22T10:00:00Z",
        data={"filename": "report.pdf"},
    )
    seq: int
    flow: str
    type: str
    """`kind.status`."""
    kind: str
    """The kind of row: `document`, `music_run`."""
    scope_id: Annotated[str, Field(serialization_alias="id")]
    """The row's id."""
    status: str
    created_at: datetime
    data: dict[str, JsonValue] = field(default_factory=dict)
    """Some facts of the row at that time."""


def last_seq(session: Session) -> int:
    """The number of the newest event; 0 before the first."""
    return session.execute(select(COUNTER.c.seq)).scalar() or 0


def first_seq(session: Session) -> int:
    """The number of the oldest kept event; without events, that of the next."""
    last = last_seq(session)  # Read this first: events committed between the two reads must not seem deleted.
    return session.execute(select(func.min(EVENTS.c.seq))).scalar() or last + 1


_AFTER = select(EVENTS).where(EVENTS.c.seq > bindparam("last")).order_by(EVENTS.c.seq).limit(bindparam("most"))


def after(session: Session, seq: int, limit: int) -> list[Event]:
    """Up to `limit` events after this number, in order."""
    return [view_of(Event, row) for row in session.execute(_AFTER, {"last": seq, "most": limit})]


def newest(
    session: Session,
    *,
    flow: str = "",
    patterns: Sequence[str] = (),
    scope_id: str = "",
    before: int | None = None,
    limit: int,
) -> list[Event]:
    """Return up to `limit` events of these types or patterns, newest first; empty arguments match all. `before`: only
    events with a lower number."""
    c = EVENTS.c
    query = select(EVENTS).order_by(c.seq.desc()).limit(limit)
    for column, wanted in ((c.flow, flow), (c.scope_id, scope_id)):
        if wanted:
            query = query.where(column == wanted)
    if patterns:
        query = query.where(or_(*(_of_type(pattern) for pattern in patterns)))
    if before is not None:
        query = query.where(c.seq < before)
    return [view_of(Event, row) for row in session.execute(query)]


def _of_type(pattern: str) -> ColumnElement[bool]:
    kind = EVENTS.c.type
    return kind.startswith(pattern[:-1], autoescape=True) if pattern.endswith("*") else kind == pattern


def one(session: Session, seq: int) -> Event | None:
    """Return an event by its number; None if retention has removed it, or it does not exist yet."""
    row = session.execute(select(EVENTS).where(EVENTS.c.seq == seq)).one_or_none()
    return view_of(Event, row) if row else None


def between(session: Session, since: datetime, until: datetime) -> Iterator[Event]:
    """Yield events from `since` to before `until`, in order, read while the session is open."""
    query = select(EVENTS).where(EVENTS.c.created_at >= since, EVENTS.c.created_at < until).order_by(EVENTS.c.seq)
    for rows in session.execute(query.execution_options(yield_per=500)).partitions():
        yield from (view_of(Event, row) for row in rows)


def erase(session: Session, table: Table, ids: Sequence[Any]) -> None:
    """Blank the data of these rows' events; their types and times stay. Deleting a row does this too."""
    kind = _announced(table).kind
    for portion in portions(map(str, ids)):
        of_rows = (EVENTS.c.kind == kind, EVENTS.c.scope_id.in_(portion))
        session.execute(update(EVENTS).where(*of_rows).values(data="{}"))


@event.listens_for(Session, "before_commit")
def _record(session: Session) -> None:
    events: list[dict[str, Any]] = []
    for table, ids in announced.take_noted(session).items():
        events += _events(session, table, ids)
        Dispatch.of(session).announce(_announced(table).flow, ids)
    if not events:
        return
    connection = session.connection()
    is_sqlite = connection.dialect.name == "sqlite"
    now = {"now": datetime.now(UTC)} if is_sqlite else {}
    last, at = connection.execute(_NEXT[is_sqlite], {"many": len(events), **now}).one()
    first = last - len(events) + 1
    connection.execute(insert(EVENTS), [{"seq": first + n, **row, "created_at": at} for n, row in enumerate(events)])


@event.listens_for(Session, "after_rollback")
def _forget(session: Session) -> None:
    announced.take_noted(session)


def _counted(*, is_sqlite: bool) -> Any:
    """A statement that adds to the counter and returns its number and time."""
    dialect: Any = sqlite if is_sqlite else postgresql
    now = bindparam("now", type_=UtcDateTime()) if is_sqlite else func.clock_timestamp()
    first = dialect.insert(COUNTER).values(id=_ONLY, seq=bindparam("many"), at=now)
    later = case((first.excluded.at > COUNTER.c.at, first.excluded.at), else_=COUNTER.c.at)
    more = {"seq": COUNTER.c.seq + first.excluded.seq, "at": later}
    return first.on_conflict_do_update(index_elements=["id"], set_=more).returning(COUNTER.c.seq, COUNTER.c.at)


_NEXT = {is_sqlite: _counted(is_sqlite=is_sqlite) for is_sqlite in (False, True)}
"""Built once: building a statement in a transaction holds SQLite's only write lock."""


def _events(session: Session, table: Table, ids: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The current state of these rows as columns of events, in the order of `ids`."""
    form = _announced(table)
    columns = dict.fromkeys(("id", "status", *form.columns, *filter(None, [form.outcome])))
    query = select(*(table.c[name] for name in columns))
    for portion in portions(ids):
        rows = {row.id: row for row in session.execute(query.where(table.c.id.in_(portion)))}
        erase(session, table, [row_id for row_id in portion if row_id not in rows])
        yield from (_columns(form, row_id, rows.get(row_id)) for row_id in portion)


def _announced(table: Table) -> Announced:
    form = announced.of(table)
    assert form is not None, f"{table.name} declares no events"
    return form


def _columns(form: Announced, row_id: Any, row: Any | None) -> dict[str, Any]:
    status = form.status(row) if row is not None else DELETED
    data = {name: _small(getattr(row, name)) for name in form.columns} if row is not None else {}
    return {
        "flow": form.flow,
        "type": f"{form.kind}.{status}",
        "kind": form.kind,
        "scope_id": str(row_id),
        "status": status,
        "data": json.dumps(data, ensure_ascii=False),
    }


def _small(value: Any) -> Any:
    return storable(value)[:MAX_TEXT] if isinstance(value, str) else plain(value)

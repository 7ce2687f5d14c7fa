"""State machines as data, and the one function that writes a status column."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

from sqlalchemy import ColumnElement, CursorResult, Table, Update, bindparam, case, or_, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningUpdate

from pipeline.engine import announced, journal
from pipeline.engine.errors import UserError

State = TypeVar("State", bound=IntEnum | StrEnum)
Event = TypeVar("Event", bound=StrEnum)


class IllegalTransition(UserError):
    """The machine has no such transition. Raised before any write."""


class StaleClaim(RuntimeError):
    """A claim that this transaction read was lost when it wrote: the caller did not lock the row's scope."""


@dataclass(frozen=True, eq=False)
class Machine(Generic[State, Event]):
    """The legal transitions: (state, event) → next state."""

    name: str
    legal: Mapping[tuple[State, Event], State]

    def target(self, state: State, event: Event) -> State:
        """The state after `event`. Raises `IllegalTransition`."""
        try:
            return self.legal[state, event]
        except KeyError:
            raise IllegalTransition(
                f"a {self.name} that is {state.name} cannot {event.value.replace('_', ' ')}", code="illegal_state"
            ) from None

    def word(self, status: Any) -> str:
        """The name of the state whose value in a row is `status`."""
        state, _ = next(iter(self.legal))
        return type(state)(status).name

    def sources(self, event: Event) -> dict[State, State]:
        """Return the states that may take `event`, each with its next state. Raises `IllegalTransition` for an event
        without transitions."""
        moves = {before: after for (before, name), after in self.legal.items() if name == event}
        if not moves:
            raise IllegalTransition(f"{self.name}: no transition is called {event.value}", code="illegal_state")
        return moves

    def change(self, table: Table, event: Event) -> tuple[ColumnElement[bool], ColumnElement[Any] | State]:
        """Return (the condition for rows that may take `event`, their next state), for an UPDATE."""
        moves = self.sources(event)
        targets = set(moves.values())
        new: ColumnElement[Any] | State = targets.pop()
        if targets:
            new = case(*((table.c.status == before, after) for before, after in moves.items()))
        # Not IN: its parameters cannot be used with executemany.
        return or_(*(table.c.status == before for before in moves)), new

    def move(self, session: Session, table: Table, event: Event, *where: ColumnElement[bool], **values: Any) -> int:
        """Move the rows that match `where` and may take `event`, with further column `values`; return their number.

        One UPDATE compares and sets: of two callers, one wins and the other gets 0.
        """
        may, new = self.change(table, event)
        statement = update(table).where(may, *where).values(status=new, **values)
        if announced.of(table) is None and not journal.listens():
            return cast("CursorResult[Any]", session.execute(statement)).rowcount
        moved = session.execute(statement.returning(table.c.id)).scalars().all()
        self.note(session, table, event, moved)
        return len(moved)

    def move_returning(
        self, session: Session, table: Table, event: Event, *where: ColumnElement[bool], **values: Any
    ) -> list[Any]:
        """Move the rows that match `where` and may take `event`, with further column `values`; return the changed rows,
        in no particular order."""
        rows = list(session.execute(self.returning(table, event, *where, **values)))
        self.note(session, table, event, (row.id for row in rows))
        return rows

    def returning(
        self, table: Table, event: Event, *where: ColumnElement[bool], **values: Any
    ) -> ReturningUpdate[tuple[Any, ...]]:
        """Return the UPDATE of `move_returning`. The caller executes it, and then calls `note` with the ids of its
        rows."""
        may, new = self.change(table, event)
        return update(table).where(may, *where).values(status=new, **values).returning(*table.c)

    def note(self, session: Session, table: Table, event: Event, ids: Iterable[Any]) -> None:
        """Note for the log and for the table's events that these rows took `event`, unless that leaves each state
        unchanged."""
        changes = self.sources(event)
        if (announced.of(table) or journal.listens()) and any(old != new for old, new in changes.items()):
            noted = list(ids)
            announced.note(session, table, noted)
            journal.moved(session, table, self.name, event, changes, noted)

    def move_each(
        self, session: Session, table: Table, event: Event, rows: Sequence[Mapping[str, Any]], **values: Any
    ) -> None:
        """Move many rows, each with its own values: mappings with `id`, `claim_id` and the columns to set.

        The caller has locked the rows' scope and holds each claim. If a claim is lost, or a row may not take `event`,
        raises `StaleClaim` after moving the others.
        """
        moved = self.move_held(session, table, event, rows, **values)
        if moved != len(rows):
            raise StaleClaim(f"{self.name}: {len(rows) - moved} of {len(rows)} claims were taken away")

    def move_held(
        self, session: Session, table: Table, event: Event, rows: Sequence[Mapping[str, Any]], **values: Any
    ) -> int:
        """Move many rows, each with its own values: mappings with `id`, `claim_id` and the columns to set. Skips rows
        whose claims were lost or whose state may not take `event`; returns how many moved."""
        if not rows:
            return 0
        columns = tuple(name for name in rows[0] if name not in {"id", "claim_id"})
        build = _statement_of_each.__wrapped__ if any(map(_is_expression, values.values())) else _statement_of_each
        statement = build(self, table, event, columns, tuple(values.items()))
        keyed = [
            {"key_id": row["id"], "key_claim": row["claim_id"], **{f"new_{name}": row[name] for name in columns}}
            for row in rows
        ]
        moved = session.connection().execute(statement, keyed).rowcount
        if moved:
            self.note(session, table, event, (row["id"] for row in rows))
        return moved


def _is_expression(value: Any) -> bool:
    return isinstance(value, ColumnElement)


@lru_cache(maxsize=256)
def _statement_of_each(
    machine: Machine[Any, Any],
    table: Table,
    event: StrEnum,
    columns: tuple[str, ...],
    alike: tuple[tuple[str, Any], ...],
) -> Update:
    """Return the UPDATE of `move_held`, built once: building it in a transaction holds SQLite's only write lock."""
    may, new = machine.change(table, event)
    return (
        update(table)
        .where(may, table.c.id == bindparam("key_id"), table.c.claim_id == bindparam("key_claim"))
        .values(status=new, **dict(alike), **{name: bindparam(f"new_{name}") for name in columns})
    )

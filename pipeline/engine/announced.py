"""Tables whose rows have events, and the rows among them that a transaction changed.

A model declares events once, in its `__table_args__`. The code that writes a status (`engine.states`) or a new row
(`engine.tables.insert_if_absent`) notes the row; before the commit `engine.outbox` records its state. For other
tables this costs one look-up in a dictionary.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from sqlalchemy import Table
from sqlalchemy.orm import Session

DELETED = "deleted"
_INFO = "announced"
_NOTED = "announced.rows"


@dataclass(frozen=True)
class Announced:
    """The form of a table's events. An event's type is `kind.status`, such as `document.completed`."""

    flow: str
    kind: str
    """The name of one row: `document`."""
    states: type[IntEnum | StrEnum]
    columns: tuple[str, ...] = ()
    """Columns whose values the events carry: small ones, and no secrets."""
    outcome: str = ""
    """A column that replaces the status in events once it has a value."""
    outcomes: tuple[str, ...] = ()
    """The values that `outcome` may have."""

    @property
    def types(self) -> tuple[str, ...]:
        """Every possible type of event."""
        words = (*(word(state) for state in self.states), *self.outcomes, DELETED)
        return tuple(dict.fromkeys(f"{self.kind}.{status}" for status in words))

    def status(self, row: Any) -> str:
        """The last word of the type of the row's next event: the value of its column `outcome` if it has one, else the
        name of its status."""
        return (getattr(row, self.outcome) if self.outcome else None) or word(self.states(row.status))


KINDS: dict[str, Announced] = {}
"""Every kind of row that has events, by its name."""


def announced(
    flow: str,
    kind: str,
    states: type[IntEnum | StrEnum],
    *columns: str,
    outcome: str = "",
    outcomes: Iterable[str] = (),
) -> dict[str, Any]:
    """Register the events of a model's rows; return the last element of its `__table_args__`."""
    KINDS[kind] = Announced(flow, kind, states, columns, outcome, tuple(outcomes))
    return {"info": {_INFO: KINDS[kind]}}


def word(state: IntEnum | StrEnum) -> str:
    """Return a state's name in events: its value, or if numbered its lower-case name."""
    return state.value if isinstance(state, StrEnum) else state.name.lower()


def wants(patterns: Sequence[str], kind: str) -> bool:
    """Whether an event of type `kind`, such as `document.completed`, matches a pattern: a type, or its beginning with a
    star, such as `document.*`. Without patterns, every type matches."""
    return not patterns or any(kind == each or (each.endswith("*") and kind.startswith(each[:-1])) for each in patterns)


def every_type() -> list[str]:
    """Every type of event that the flows imported so far may have, sorted. Import all flows first."""
    return sorted(event for kind in KINDS.values() for event in kind.types)


def unknown(patterns: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the patterns that match none of the types `known`."""
    return [pattern for pattern in patterns if not any(wants([pattern], kind) for kind in known)]


def of(table: Table) -> Announced | None:
    """The declaration of the table's events; None if its rows have none."""
    form = table.info.get(_INFO)
    return form if isinstance(form, Announced) else None


def note(session: Session, table: Table, ids: Iterable[Any]) -> None:
    """Note that this transaction created, changed or deleted these rows, so that its commit records an event for each.
    Does nothing for tables without events."""
    if _INFO in table.info:
        session.info.setdefault(_NOTED, {}).update(((table, row_id), None) for row_id in ids)


def take_noted(session: Session) -> Mapping[Table, list[Any]]:
    """Return and forget the ids of the rows noted in this session, by table, in the order of noting."""
    noted: dict[tuple[Table, Any], None] = session.info.pop(_NOTED, {})
    rows: dict[Table, list[Any]] = {}
    for table, row_id in noted:
        rows.setdefault(table, []).append(row_id)
    return rows

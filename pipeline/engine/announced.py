"""Which tables' rows people follow, and which of these rows a transaction changed.

A model says it once, in its `__table_args__`. Whatever then writes a status (`engine.states`), or a new row
(`engine.tables.insert_if_absent`), notes the row; before the commit `engine.outbox` writes down how it stands. Other
tables cost one look into a dictionary.
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
    """How changes of a table's rows are told. A type of events is `kind.status`, as in `document.completed`."""

    flow: str
    kind: str
    """What a row is called: `document`."""
    states: type[IntEnum | StrEnum]
    columns: tuple[str, ...] = ()
    """Columns whose values are told as well: small ones, and no secrets."""
    outcome: str = ""
    """A column that says better than the status how the row ended, once it has a value."""
    outcomes: tuple[str, ...] = ()
    """The values it may have."""

    @property
    def types(self) -> tuple[str, ...]:
        """Every type of event that there may be."""
        words = (*(word(state) for state in self.states), *self.outcomes, DELETED)
        return tuple(dict.fromkeys(f"{self.kind}.{one}" for one in words))

    def status(self, row: Any) -> str:
        """How a row stands, in one word."""
        return (getattr(row, self.outcome) if self.outcome else None) or word(self.states(row.status))


KINDS: dict[str, Announced] = {}
"""Every kind of row that is announced, by what it is called."""


def announced(
    flow: str,
    kind: str,
    states: type[IntEnum | StrEnum],
    *columns: str,
    outcome: str = "",
    outcomes: Iterable[str] = (),
) -> dict[str, Any]:
    """The last of a model's `__table_args__`, whose rows are announced."""
    KINDS[kind] = Announced(flow, kind, states, columns, outcome, tuple(outcomes))
    return {"info": {_INFO: KINDS[kind]}}


def word(state: IntEnum | StrEnum) -> str:
    """A state's name in events."""
    return state.value if isinstance(state, StrEnum) else state.name.lower()


def wants(patterns: Sequence[str], kind: str) -> bool:
    """Whether events of this type match. A pattern is a type, or `document.*`; none at all: every type."""
    return not patterns or any(kind == one or (one.endswith("*") and kind.startswith(one[:-1])) for one in patterns)


def every_type() -> list[str]:
    """Every type of event that there may be. The flows must have been imported."""
    return sorted(one for kind in KINDS.values() for one in kind.types)


def unknown(patterns: Sequence[str], known: Collection[str]) -> list[str]:
    """Patterns that no type of event can match."""
    return [one for one in patterns if not any(wants([one], kind) for kind in known)]


def of(table: Table) -> Announced | None:
    """How the table's rows are announced; None if nobody follows them."""
    found = table.info.get(_INFO)
    return found if isinstance(found, Announced) else None


def note(session: Session, table: Table, ids: Iterable[Any]) -> None:
    """Note that this transaction made, changed or deleted these rows; nothing if nobody follows them."""
    if _INFO in table.info:
        session.info.setdefault(_NOTED, {}).update(((table, row_id), None) for row_id in ids)


def take_noted(session: Session) -> Mapping[Table, list[Any]]:
    """What was noted since, in order; it is forgotten."""
    noted: dict[tuple[Table, Any], None] = session.info.pop(_NOTED, {})
    found: dict[Table, list[Any]] = {}
    for table, row_id in noted:
        found.setdefault(table, []).append(row_id)
    return found

"""The declarative base and the column types of all tables."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Column, ColumnElement, DateTime, Dialect, Integer, MetaData, Table, func
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.types import TypeDecorator

from pipeline.engine import announced

Value = TypeVar("Value")

# Named constraints: Alembic alters only what has a name, on SQLite above all.
NAMING = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """An instant. Takes aware datetimes only; SQLite, which has no zones, stores UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a datetime without a time zone is ambiguous; use datetime.now(UTC)")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


RowId = BigInteger().with_variant(Integer, "sqlite")
"""A row's number from the database. SQLite numbers rows in columns of type INTEGER only."""


class Base(DeclarativeBase):
    """Base of all models."""

    metadata = MetaData(naming_convention=NAMING)

    @classmethod
    def __table_cls__(cls, *args: Any, **options: Any) -> Table:
        """Never reuse the id of a deleted row in tables that the database numbers: other rows may still name it."""
        key = [column for column in args if isinstance(column, Column) and column.primary_key]
        numbered = len(key) == 1 and key[0].autoincrement == "auto" and not key[0].foreign_keys
        if numbered and isinstance(key[0].type.as_generic(), Integer):
            options["sqlite_autoincrement"] = True
        return Table(*args, **options)


# NUL, which PostgreSQL refuses, and lone surrogates, which UTF-8 cannot encode. Models do write them.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """Replace NUL and lone surrogates, which a database or a file refuses, by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def mentions(column: ColumnElement[str], words: str) -> ColumnElement[bool]:
    """Condition: a column contains `words` as one text, in upper or lower case as the database knows it.

    The words may have any length: SQLite's LIKE refuses more than 50,000 bytes.
    """
    text = func.lower(column)
    return func.replace(text, func.lower(words), "") != text


def table_of(model: type[Any]) -> Table:
    """The Core table of a model. Its statements skip the ORM's work for each row."""
    table = model.__table__
    assert isinstance(table, Table)
    return table


def upsert(session: Session, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, at least one, all with the same columns. If a row with the same primary key exists, overwrite these
    columns of it instead."""
    insert: Any = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    # Rows as parameters: a statement with thousands of values takes longer to compile than to run.
    statement = insert(table)
    key = [column.name for column in table.primary_key]
    changed = {name: statement.excluded[name] for name in rows[0] if name not in key}
    session.execute(statement.on_conflict_do_update(index_elements=key, set_=changed), list(rows))


def insert_if_absent(session: Session, table: Table, row: dict[str, Any], *unique: str) -> bool:
    """Insert a row unless one has the same `unique` columns (default: primary key); return whether it was new.

    A new row of a table with events gets its event.
    """
    insert: Any = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    key = unique or tuple(column.name for column in table.primary_key)
    statement = insert(table).values(**row).on_conflict_do_nothing(index_elements=list(key))
    added = session.execute(statement.returning(*table.primary_key)).first()
    if added is not None:
        announced.note(session, table, added[:1])
    return added is not None


def portions(values: Iterable[Value], size: int = 500) -> Iterator[list[Value]]:
    """Split values into lists short enough for one statement: databases limit its parameters."""
    remaining = iter(values)
    while portion := list(islice(remaining, size)):
        yield portion

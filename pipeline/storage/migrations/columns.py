"""Shorthands for tables and columns in migrations: several columns of one type at once.

A name that ends with `?` may be NULL. This module must not change: a migration always has the same effect.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import sqlalchemy as sa
from alembic import op

NAMING = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def columns_of(
    kind: sa.types.TypeEngine[Any], *names: str, to: str = "", on_delete: str | None = "CASCADE", **options: Any
) -> list[sa.Column[Any]]:
    """Return columns of one type; a name that ends with `?` may be NULL. `to`: the referenced column."""
    return [
        sa.Column(
            name.rstrip("?"),
            kind,
            *([sa.ForeignKey(to, ondelete=on_delete)] if to else []),
            nullable=name.endswith("?"),
            **options,
        )
        for name in names
    ]


ident = partial(columns_of, sa.BigInteger().with_variant(sa.Integer(), "sqlite"))
integer = partial(columns_of, sa.Integer())
bigint = partial(columns_of, sa.BigInteger())
real = partial(columns_of, sa.Float())
double = partial(columns_of, sa.Double())
boolean = partial(columns_of, sa.Boolean())
text = partial(columns_of, sa.Text())
blob = partial(columns_of, sa.LargeBinary())
moment = partial(columns_of, sa.DateTime(timezone=True))


def string(length: int, *names: str, **options: Any) -> list[sa.Column[Any]]:
    """Return columns of text of at most `length` characters."""
    return columns_of(sa.String(length), *names, **options)


def claim() -> list[sa.Column[Any]]:
    """Return the columns of a unit that workers claim."""
    return [
        *string(200, "worker_id?"),
        *string(32, "claim_id?"),
        *string(64, "request_id?"),
        *moment("lease_until?"),
        *integer("attempts"),
        *moment("next_run_at?"),
    ]


def index_where(condition: str, name: str, *columns: str) -> sa.Index:
    """Return an index of only the rows that meet the condition."""
    # SQLite uses a partial index only for a condition spelt as in the statement, where SQLAlchemy writes IS 0.
    spelt = condition.replace("IS FALSE", "IS 0").replace("IS TRUE", "IS 1")
    return sa.Index(name, *columns, sqlite_where=sa.text(spelt), postgresql_where=sa.text(condition))


def claim_indexes(table: str, claimable: str = "", *columns: str) -> list[sa.Index]:
    """Return the indexes of units: claimed ones, waiting ones, and `claimable` ones by `columns`."""
    prefix = f"ix_{table}"
    return [
        *([index_where(claimable, f"{prefix}_claimable", *columns)] if claimable else []),
        index_where("claim_id IS NOT NULL", f"{prefix}_claimed", "worker_id", "lease_until"),
        index_where("next_run_at IS NOT NULL", f"{prefix}_next_run_at", "next_run_at"),
    ]


class Tables:
    """New tables with named constraints, so that later migrations can change them."""

    def __init__(self) -> None:
        self._metadata = sa.MetaData(naming_convention=NAMING)

    def add(self, name: str, *items: sa.schema.SchemaItem | Sequence[sa.schema.SchemaItem], **options: Any) -> None:
        """Add a table of these columns and indexes, single or in lists."""
        each = chain.from_iterable(item if isinstance(item, list) else [item] for item in items)
        sa.Table(name, self._metadata, *each, **options)

    def create(self) -> None:
        self._metadata.create_all(op.get_bind(), checkfirst=False)

    def drop(self) -> None:
        self._metadata.drop_all(op.get_bind(), checkfirst=False)


def add_columns(table: str, *columns: sa.Column[Any]) -> None:
    for column in columns:
        op.add_column(table, column)


def drop_columns(table: str, *names: str) -> None:
    for name in names:
        op.drop_column(table, name)


def create_full_text(table: str, items: str) -> None:
    """Create a full-text table about the rows of `items`: FTS5's own, or a tsvector.

    Penstock makes the terms; the database stores and ranks them.
    """
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE VIRTUAL TABLE {table} USING fts5(head, apps, body, tokenize = 'ascii')")
        return
    op.execute(
        f"CREATE TABLE {table} (rowid BIGINT PRIMARY KEY REFERENCES {items} (id) ON DELETE CASCADE,"
        " terms TSVECTOR NOT NULL)"
    )
    op.execute(f"CREATE INDEX ix_{table}_terms ON {table} USING gin (terms)")

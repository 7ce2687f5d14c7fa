"""Columns as migrations write them down: several of one type at once. A name that ends with `?` may be NULL."""

from functools import partial
from typing import Any

import sqlalchemy as sa

from pipeline.engine import tables


def columns_of(
    kind: sa.types.TypeEngine[Any], *names: str, to: str = "", on_delete: str | None = "CASCADE", **options: Any
) -> list[sa.Column[Any]]:
    """Columns of one type; those whose name ends with `?` may be NULL. `to`: the column that they refer to."""
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
moment = partial(columns_of, tables.UtcDateTime())


def string(length: int, *names: str, **options: Any) -> list[sa.Column[Any]]:
    """Columns of text of at most `length` characters."""
    return columns_of(sa.String(length), *names, **options)


def claim() -> list[sa.Column[Any]]:
    """What `ClaimColumns` has."""
    return [
        *string(200, "worker_id?"),
        *string(32, "claim_id?"),
        *string(64, "request_id?"),
        *moment("lease_until?"),
        *integer("attempts"),
        *moment("next_run_at?"),
    ]


def index_where(condition: str, name: str, *columns: str) -> sa.Index:
    """An index of only the rows that meet the condition."""
    # SQLite uses a partial index only for a condition that is spelt as in the statement: SQLAlchemy says IS 0 there.
    spelt = condition.replace("IS FALSE", "IS 0").replace("IS TRUE", "IS 1")
    return sa.Index(name, *columns, sqlite_where=sa.text(spelt), postgresql_where=sa.text(condition))

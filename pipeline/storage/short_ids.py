"""Ids as people give them: the beginning of one is enough, as long as no other begins so."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, select

from pipeline.engine.errors import UserError
from pipeline.storage.context import Context

LEAST_BESIDE_NAMES = 4
"""Characters of an id, where a name may be given as well."""
_AFTER = "zz"
"""Behind every beginning: ids have lower-case letters, digits and `_`, whatever the database's collation."""


def one_of(ids: Iterable[str], beginning: str, noun: str) -> str | None:
    """The id that begins so, or is this; None if there is none. Raises `UserError` if several do."""
    found = sorted({one for one in ids if one.startswith(beginning)}) if beginning else []
    if len(found) > 1 and beginning not in found:
        raise UserError(f"several {noun} begin with {beginning}: give more of the id", code="ambiguous")
    return beginning if beginning in found else found[0] if found else None


def resolve(context: Context, column: ColumnElement[Any], beginning: str, noun: str) -> str | None:
    """The same among the ids in an indexed column."""
    # A range, not LIKE: that reads every id.
    mine = select(column).where(column >= beginning, column < beginning + _AFTER).distinct().order_by(column).limit(3)
    with context.db.read() as session:
        return one_of([str(one) for one in session.execute(mine).scalars()], beginning, noun)

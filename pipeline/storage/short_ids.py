"""Short ids: the start of an id is enough if no other id starts with it."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, select

from pipeline.engine.errors import UserError
from pipeline.storage.context import Context

LEAST_BESIDE_NAMES = 4
"""The least characters of an id where a name may be given as well."""
_AFTER = "zz"
"""Sorts after every id: ids have lower-case letters, digits and `_`, whatever the database's collation."""


def one_of(ids: Iterable[str], beginning: str, noun: str) -> str | None:
    """Return the id that equals `beginning`, or else the one that starts with it; None if none does, or `beginning` is
    empty. Raises `UserError` if several start with it and none equals it. `noun`: the plural for its message."""
    matches = sorted({id_ for id_ in ids if id_.startswith(beginning)}) if beginning else []
    if len(matches) > 1 and beginning not in matches:
        raise UserError(f"several {noun} begin with {beginning}: give more of the id", code="ambiguous")
    return beginning if beginning in matches else matches[0] if matches else None


def resolve(context: Context, column: ColumnElement[Any], beginning: str, noun: str) -> str | None:
    """Return the id in an indexed column that equals `beginning`, or else the one that starts with it; None if none
    does, or `beginning` is empty. Raises `UserError` if several start with it and none equals it. `noun`: the plural
    for its message."""
    # A range, since LIKE would read every id.
    near = select(column).where(column >= beginning, column < beginning + _AFTER).distinct().order_by(column).limit(3)
    with context.db.read() as session:
        return one_of([str(id_) for id_ in session.execute(near).scalars()], beginning, noun)

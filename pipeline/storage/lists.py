"""Pass lists of any length as one parameter: hundreds of parameters take longer to compile than their rows to read."""

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, String, any_, bindparam, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session
from sqlalchemy.sql.selectable import FromClause


def one_of(session: Session, column: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
    """Return the condition that the column has one of these values, which are texts or integers."""
    if _is_sqlite(session):
        return column.in_(select(func.json_each(json.dumps(list(values))).table_valued("value").c.value))
    return column == any_(bindparam(None, list(values), ARRAY(column.type), unique=True))


def pairs(session: Session, of: Iterable[tuple[str, int]]) -> FromClause:
    """Return (text, number) pairs as a table to join, with the columns `text` and `number`."""
    rows = list(of)
    if _is_sqlite(session):
        value = func.json_each(json.dumps(rows)).table_valued("value").c.value
        text, number = (func.json_extract(value, f"$[{place}]") for place in (0, 1))
        return select(text.label("text"), number.label("number")).subquery()
    texts = bindparam(None, [text for text, _ in rows], ARRAY(String), unique=True)
    numbers = bindparam(None, [number for _, number in rows], ARRAY(BigInteger), unique=True)
    return (
        func.unnest(cast(texts, ARRAY(String)), cast(numbers, ARRAY(BigInteger)))
        .table_valued("text", "number")
        .render_derived()
    )


def _is_sqlite(session: Session) -> bool:
    return session.get_bind().dialect.name == "sqlite"

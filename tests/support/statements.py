"""Statements are compiled once a session, not once more for each test's engine: that was a fifth of what tests compute.

SQLAlchemy keeps what it compiled for as long as the engine lives, and by the engine's dialect object. Here all engines
of one kind share what was compiled, and their dialects count as one: they are made with the same options.
"""

from typing import Any

import sqlalchemy
from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from pipeline.storage import database

_KEPT = 10_000
_compiled: dict[type, LRUCache[Any, Any]] = {}


def share_compiled() -> None:
    """From now on, in this process, databases share what is compiled for them."""
    for kind in (SQLiteDialect_pysqlite, PGDialect_psycopg):
        kind.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
        kind.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
    database.create_engine = _create_engine  # type: ignore[attr-defined]


def _create_engine(*arguments: Any, **options: Any) -> Engine:
    engine = sqlalchemy.create_engine(*arguments, **options)
    engine._compiled_cache = _compiled.setdefault(type(engine.dialect), LRUCache(_KEPT))
    return engine

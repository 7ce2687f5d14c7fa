"""Compiles statements once a session instead of for each test's engine, which took a fifth of the tests' time.

SQLAlchemy caches compiled statements for the life of the engine, by the engine's dialect object. Here all engines
of one kind share one cache, and their dialects count as one: they have the same options.
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
    """Let databases of this process share their compiled statements from now on."""
    for kind in (SQLiteDialect_pysqlite, PGDialect_psycopg):
        kind.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
        kind.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
    database.create_engine = _create_engine  # type: ignore[attr-defined]


def _create_engine(*arguments: Any, **options: Any) -> Engine:
    engine = sqlalchemy.create_engine(*arguments, **options)
    engine._compiled_cache = _compiled.setdefault(type(engine.dialect), LRUCache(_KEPT))
    return engine

"""The sizes of tables, as far as the database reports them."""

from dataclasses import dataclass

from sqlalchemy import inspect, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from pipeline.storage.database import Database

_COUNTED = 1_000_000
"""Up to this many rows, PostgreSQL counts them exactly."""
_MEASURED_BYTES = 2 * 2**30
"""To measure tables, SQLite reads its whole file: skip that for a larger file."""
_SQLITE_BYTES = """
    SELECT schema.tbl_name AS name, SUM(stat.pgsize) AS bytes
    FROM dbstat AS stat JOIN sqlite_schema AS schema ON schema.name = stat.name
    WHERE stat.aggregate = TRUE GROUP BY schema.tbl_name
"""
_POSTGRES_BYTES = """
    SELECT relname AS name, pg_total_relation_size(oid) AS bytes, reltuples AS estimate
    FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace
"""


@dataclass(frozen=True)
class TableSize:
    """A table with its indexes; `bytes` is None if the database does not report it. `estimated`: `rows` is."""

    name: str
    rows: int
    bytes: int | None
    estimated: bool = False


def database_bytes(db: Database) -> int:
    """Return the size of the whole database, from one fast query."""
    with db.read() as session:
        if db.is_sqlite:
            pages, each = session.execute(text("SELECT * FROM pragma_page_count(), pragma_page_size()")).one()
            return int(pages) * int(each)
        return int(session.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def table_sizes(db: Database) -> list[TableSize]:
    """Return every table with rows, largest first."""
    with db.read() as session:
        names = inspect(session.connection()).get_table_names()
        sizes = _sqlite(session, names) if db.is_sqlite else _postgres(session, names)
    return sorted((size for size in sizes if size.rows), key=lambda size: (-(size.bytes or 0), -size.rows, size.name))


def _count(session: Session, name: str) -> int:
    return int(session.execute(text(f'SELECT COUNT(*) FROM "{name}"')).scalar_one())  # noqa: S608  # the database's own name


def _sqlite(session: Session, names: list[str]) -> list[TableSize]:
    whole = text("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    sizes: dict[str, int] = {}
    if int(session.execute(whole).scalar_one()) <= _MEASURED_BYTES:
        try:
            sizes = {row.name: row.bytes for row in session.execute(text(_SQLITE_BYTES))}
        except OperationalError:
            session.rollback()  # built without dbstat
    return [TableSize(name, _count(session, name), sizes.get(name)) for name in names]


def _postgres(session: Session, names: list[str]) -> list[TableSize]:
    reported = {row.name: row for row in session.execute(text(_POSTGRES_BYTES))}
    sizes = []
    for name in names:
        many = reported[name].estimate > _COUNTED
        rows = int(reported[name].estimate) if many else _count(session, name)
        sizes.append(TableSize(name, rows, reported[name].bytes, estimated=many))
    return sizes

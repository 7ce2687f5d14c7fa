"""Migrate a database to the current schema."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from pipeline.engine.errors import UserError
from pipeline.storage.context import Context
from pipeline.storage.database import Database

HEAD = "0021"
"""The newest migration. Named here so that checking a current database imports no Alembic; a test compares the two."""
_ADVISORY_LOCK = 7_361_001


def current(db: Database, *, patience_s: float | None = None) -> str | None:
    """Return the number of the database's newest migration; None without a schema."""
    with db.read(patience_s=patience_s) as session:
        connection = session.connection()
        if not inspect(connection).has_table("alembic_version"):
            return None
        version: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return version


def migrate(db: Database) -> bool:
    """Migrate the schema to `HEAD`; return whether it changed. Safe to call from many processes at once."""
    if current(db) == HEAD:
        return False
    with _one_at_a_time(db):
        if current(db) == HEAD:
            return False
        with db.engine.connect() as connection:
            upgrade(connection)
            connection.commit()
    return True


def ensure(context: Context) -> None:
    """Ensure that the database has this version's schema: migrate an embedded one.

    Raises `UserError` if another database needs `penstock migrate`.
    """
    if context.settings.embedded_database:
        migrate(context.db)
        return
    at = current(context.db)
    if at != HEAD:
        lacks = "has no schema yet" if at is None else f"has another version's schema ({at}, not {HEAD})"
        raise UserError(f"the database {lacks}: run `penstock migrate` with the same settings", code="schema")


def upgrade(connection: Connection) -> None:
    """Run the missing migrations on an open connection; the caller commits."""
    # Imported late: Alembic takes a third of a second, and migrations are rare.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@contextmanager
def _one_at_a_time(db: Database) -> Iterator[None]:
    if db.is_sqlite:
        with Path(f"{db.url.database}.migrate.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        return
    with db.engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_LOCK})
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _ADVISORY_LOCK})

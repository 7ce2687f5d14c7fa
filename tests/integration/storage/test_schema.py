import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, Table, insert, inspect, select, text

import pipeline.engine.accounts
import pipeline.engine.live_settings
import pipeline.engine.outbox
import pipeline.engine.traces
import pipeline.flows.documents.models
import pipeline.flows.knowledge.models
import pipeline.flows.music.models
import pipeline.flows.screenshots.graph.models
import pipeline.flows.screenshots.models
import pipeline.flows.webhooks.models
import pipeline.nodes.names
import pipeline.nodes.tokens
import pipeline.storage.api_keys
import pipeline.storage.api_sessions
import pipeline.storage.idempotency
import pipeline.storage.installation
import pipeline.storage.vectors  # noqa: F401  # their tables belong to the schema
from pipeline.engine.tables import Base
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS
from pipeline.flows.music import fulltext
from pipeline.flows.music.library import songs
from pipeline.flows.music.library.songs import SongTags
from pipeline.storage import schema
from pipeline.storage.database import Database
from tests.support.calls import call_row

pytestmark = pytest.mark.both_databases

MIGRATIONS = Path(schema.__file__).parent / "migrations"


@pytest.fixture
def migrated() -> bool:
    return False


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    """A database without tables."""
    database = Database(database_url)
    yield database
    database.dispose()


def is_managed(name: str | None, kind: str, _parents: object) -> bool:
    """Alembic's `include_name`: leave out full-text tables, which have no models and for which FTS5 creates several."""
    return kind != "table" or not re.search(r"_fts(_|$)", name or "")


def tables(db: Database) -> set[str]:
    with db.engine.connect() as connection:
        names = inspect(connection).get_table_names()
    return {name for name in names if is_managed(name, "table", {})}


def run(db: Database, name: str, revision: str) -> None:
    """Run `alembic upgrade` or `alembic downgrade`."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with db.engine.connect() as connection:
        config.attributes.update(connection=connection, metadata=Base.metadata, include_name=is_managed)
        getattr(command, name)(config, revision)
        connection.commit()


def test_head_names_the_newest_migration() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_heads() == [schema.HEAD]


def test_an_empty_database_is_brought_to_the_newest_schema(db: Database) -> None:
    assert schema.current(db) is None
    assert schema.migrate(db)
    assert schema.current(db) == schema.HEAD
    assert tables(db) == {
        "alembic_version",
        "documents",
        "pages",
        "page_attempts",
        "ai_calls",
        "system_settings",
        "installation",
        "music_songs",
        "music_batches",
        "music_runs",
        "knowledge_bases",
        "knowledge_turns",
        "knowledge_items",
        "knowledge_chunks",
        "knowledge_batches",
        "vectors",
        "vector_codes",
        "vector_versions",
        "page_layouts",
        "page_escalations",
        "screenshot_sources",
        "screenshots",
        "screenshot_rejections",
        "screenshot_batches",
        "screenshot_shards",
        "screenshot_threads",
        "screenshot_nodes",
        "screenshot_embeddings",
        "screenshot_links",
        "screenshot_entities",
        "screenshot_mentions",
        "ai_call_totals",
        "ai_call_cursor",
        "screenshot_edges",
        "screenshot_provenance",
        "screenshot_calls",
        "events",
        "event_counter",
        "webhook_endpoints",
        "webhook_deliveries",
        "webhook_attempts",
        "api_keys",
        "api_sessions",
        "spend_charges",
        "spend_reservations",
        "idempotent_requests",
        "node_tokens",
        "node_names",
    }


def test_ids_of_deleted_rows_are_not_reused(db: Database) -> None:
    """In every table that numbers its rows, because accounts, calls and vectors refer to the numbers."""
    run(db, "upgrade", "0016")
    with db.transaction() as session:
        session.execute(
            text(
                "INSERT INTO ai_calls (id, flow, scope_id, unit, capability, operation, provider, queue, "
                "model, status, latency_ms, input_tokens, output_tokens, cost, preview, created_at) "
                "VALUES (7, '', '', '', '', '', '', '', '', '', 0, 0, 0, 0, '', '2026-11-01 00:00:00')"
            )
        )
        sql = "INSERT INTO api_work (flow, item_id, owner, since) VALUES (:flow, '7', 'ann', '2026-11-01 00:00:00')"
        session.execute(text(sql), [{"flow": "documents"}, {"flow": "screenshots"}])
    schema.migrate(db)
    with db.read() as session:
        assert set(session.execute(text("SELECT owner, item_id FROM spend_reservations")).all()) == {
            ("ann", "7"),
            ("ann", "frame:7"),
        }, "the migration keeps the owners of work under way"
    other = Database(db.url.render_as_string(hide_password=False))
    row = call_row("p", other.now())
    for expected in (8, 9) if db.is_sqlite else (1, 2):
        with other.transaction() as session:
            calls = Base.metadata.tables["ai_calls"]
            assert session.execute(insert(calls).values(row).returning(calls.c.id)).scalar_one() == expected
            session.execute(text("DELETE FROM ai_calls"))
    if db.is_sqlite:
        known = Base.metadata.sorted_tables
        numbered = {table.name for table in known if table.dialect_options["sqlite"]["autoincrement"]}
        with other.read() as session:
            query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'"
            assert set(session.execute(text(query)).scalars()) == numbered
            assert session.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"
    other.dispose()


def test_migrating_a_current_database_changes_nothing(db: Database) -> None:
    schema.migrate(db)
    assert not schema.migrate(db)


def test_a_current_database_is_recognised_while_others_write(db: Database) -> None:
    schema.migrate(db)
    impatient = Database(db.url.render_as_string(hide_password=False))
    with db.transaction() as session:
        session.execute(text("DELETE FROM documents"))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(schema.migrate, impatient).result(5) is False
    impatient.dispose()


def test_models_and_migrations_agree(db: Database) -> None:
    schema.migrate(db)
    with db.engine.connect() as connection:
        options = {"compare_type": True, "render_as_batch": True, "include_name": is_managed}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []


def test_alembic_s_own_check_finds_nothing_to_do(db: Database) -> None:
    run(db, "upgrade", "head")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with db.engine.connect() as connection:
        config.attributes.update(connection=connection, metadata=Base.metadata, include_name=is_managed)
        command.check(config)


def test_every_migration_can_be_reverted_and_repeated(db: Database) -> None:
    run(db, "upgrade", "head")
    run(db, "downgrade", "base")
    assert tables(db) == {"alembic_version"}
    assert schema.current(db) is None
    assert schema.migrate(db)
    assert schema.current(db) == schema.HEAD
    assert {"documents", "pages"} <= tables(db)


def test_the_migration_indexes_the_words_of_existing_songs(db: Database) -> None:
    schema.migrate(db)
    now = datetime.now(UTC)
    tags = SongTags("a", "So What", "Miles Davis", "Kind of Blue")
    db.run(lambda session: songs.store(session, songs.FOLDER, [tags], now))
    run(db, "downgrade", "0007")
    assert schema.migrate(db)
    with db.read() as session:
        assert len(fulltext.search(session, "miles kind", 10)[0]) == 1


def test_rows_can_be_written_to_the_migrated_schema(db: Database) -> None:
    schema.migrate(db)
    with db.read() as session:
        assert session.execute(select(DOCUMENTS)).all() == []


def test_simultaneous_threads_migrate_once(database_url: str) -> None:
    barrier = Barrier(6)

    def migrate(_: int) -> bool:
        database = Database(database_url)
        barrier.wait(60)
        try:
            return schema.migrate(database)
        finally:
            database.dispose()

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(migrate, range(6))) == 1


@pytest.mark.slow
def test_simultaneous_processes_migrate_once(database_url: str, db: Database) -> None:
    program = (
        "import sys\n"
        "from pipeline.storage import schema\n"
        "from pipeline.storage.database import Database\n"
        "db = Database(sys.argv[1])\n"
        "sys.stdin.read()\n"  # all start when their standard input is closed
        "print(schema.migrate(db))\n"
        "db.dispose()\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, database_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda process: process.communicate(timeout=60), processes))
    assert [error for _, error in done] == [""] * 2
    assert sorted(output.strip() for output, _ in done) == ["False", "True"]
    assert schema.current(db) == schema.HEAD


def test_a_failed_migration_leaves_no_partial_schema(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patched:
        # Fail at the last step of the migration, after all its changes.
        patched.setattr("alembic.runtime.migration.HeadMaintainer.update_to_step", breaks)
        with pytest.raises(RuntimeError, match="power cut"):
            schema.migrate(db)
    assert tables(db) <= {"alembic_version"}
    assert schema.migrate(db)


def test_the_migration_computes_costs_of_documents_from_recorded_calls(db: Database) -> None:
    run(db, "upgrade", "0007")
    known = MetaData()
    known.reflect(db.engine, only=["documents", "page_attempts", "ai_calls"])
    document, attempt = known.tables["documents"], known.tables["page_attempts"]
    with db.engine.begin() as connection:
        connection.execute(insert(document).values(filled(document, id="d", submission_key="k")))
        for page, provider, cached in ((1, "ai", False), (2, "local", False), (3, "ai", True)):
            values = {"id": page, "document_id": "d", "page": page, "provider": provider, "cached": cached}
            connection.execute(insert(attempt).values(filled(attempt, latency_ms=7, **values)))
        calls = known.tables["ai_calls"]
        for number, (latency_ms, cost) in enumerate(((7, 0.25), (9, 0.5)), 1):
            values = {"id": number, "flow": "documents", "scope_id": "d", "unit": "1", "provider": "ai", "cost": cost}
            connection.execute(insert(calls).values(filled(calls, latency_ms=latency_ms, **values)))
    schema.migrate(db)
    with db.read() as session:
        assert session.execute(select(DOCUMENTS.c.cost)).scalars().all() == [0.75]
        assert session.execute(select(ATTEMPTS.c.cost).order_by(ATTEMPTS.c.page)).scalars().all() == [0.25, 0, 0]


def filled(table: Table, **values: Any) -> dict[str, Any]:
    """Return a row with these values, and a placeholder in every other required column."""
    blank: dict[type, Any] = {str: "x", int: 0, float: 0.0, bool: False, datetime: datetime(2026, 1, 1)}  # noqa: DTZ001
    needed = [column for column in table.columns if not column.nullable and column.name not in values]
    return {**{column.name: blank[column.type.python_type] for column in needed}, **values}

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from threading import Barrier, Event

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from pipeline.engine.errors import UserError
from pipeline.storage import database
from pipeline.storage.database import Database, is_passing

pytestmark = pytest.mark.both_databases


@pytest.fixture
def migrated() -> bool:
    return False


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    with database.transaction() as session:
        session.execute(text("CREATE TABLE figures (name VARCHAR(20) PRIMARY KEY, value INTEGER)"))
        session.execute(text("INSERT INTO figures VALUES ('a', 0)"))
    yield database
    database.dispose()


def value(db: Database) -> int:
    with db.read() as session:
        return int(session.execute(text("SELECT value FROM figures")).scalar_one())


def add_one(session: Session) -> None:
    session.execute(text("UPDATE figures SET value = value + 1"))


def test_a_transaction_is_committed_at_its_end(db: Database) -> None:
    with db.transaction() as session:
        add_one(session)
    assert value(db) == 1


def test_a_transaction_that_fails_leaves_nothing(db: Database) -> None:
    with pytest.raises(RuntimeError), db.transaction() as session:  # noqa: PT012  # two statements are the point
        add_one(session)
        raise RuntimeError("broken")
    assert value(db) == 0


def test_run_returns_the_result_of_the_work(db: Database) -> None:
    assert db.run(lambda session: session.execute(text("SELECT value + 41 FROM figures")).scalar()) == 41


def passing_error(db: Database) -> DBAPIError:
    """Return the driver's error for a transaction that may succeed on its next try."""
    if db.is_sqlite:
        return OperationalError("UPDATE", {}, sqlite3.OperationalError("database is locked"))
    return OperationalError("UPDATE", {}, psycopg.errors.SerializationFailure("could not serialize access"))


def test_run_repeats_the_work_until_it_succeeds(db: Database) -> None:
    tries = []

    def work(session: Session) -> str:
        add_one(session)
        tries.append(1)
        if len(tries) < 3:
            raise passing_error(db)
        return "done"

    assert db.run(work) == "done"
    assert len(tries) == 3
    assert value(db) == 1, "the failed tries left nothing"


def test_run_gives_up_when_its_patience_ends(db: Database) -> None:
    def work(_: Session) -> None:
        raise passing_error(db)

    with pytest.raises(OperationalError):
        db.run(work, patience_s=0.2)


def test_run_does_not_repeat_work_that_cannot_succeed(db: Database) -> None:
    tries = []

    def work(session: Session) -> None:
        tries.append(1)
        session.execute(text("INSERT INTO figures VALUES ('a', 1)"))

    with pytest.raises(IntegrityError):
        db.run(work)
    with pytest.raises((OperationalError, ProgrammingError)):
        db.run(lambda session: session.execute(text("SELECT * FROM nowhere")))
    assert len(tries) == 1


def test_run_does_not_repeat_the_work_after_its_own_error(db: Database) -> None:
    tries = []

    def work(session: Session) -> None:
        add_one(session)
        tries.append(1)
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        db.run(work)
    assert (len(tries), value(db)) == (1, 0)


def test_concurrent_writers_lose_no_update(db: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(db.run, add_one) for _ in range(80)]:
            done.result(60)
    assert value(db) == 80


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_run_outlasts_a_writer_who_holds_the_lock_beyond_the_busy_timeout(
    database_url: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0)
    hurried = Database(database_url)
    refused = Event()

    def work(session: Session) -> None:
        add_one(session)

    def note(*_: object, **__: object) -> None:
        refused.set()

    monkeypatch.setattr(database.log, "warning", note, raising=False)
    with ThreadPoolExecutor(1) as pool:
        with db.transaction() as session:
            add_one(session)
            waiting = pool.submit(hurried.run, work)
            assert refused.wait(60), "the work met the lock"
        waiting.result(30)
    hurried.dispose()
    assert value(db) == 2


def end_connection(db: Database, session: Session) -> None:
    """Let the server end the session's connection."""
    own = session.execute(text("SELECT pg_backend_pid()")).scalar()
    with closing(psycopg.connect(host=str(db.url.query["host"]), dbname=db.url.database, user="postgres")) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [own])


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_run_survives_a_connection_that_the_server_ends(db: Database) -> None:
    tries = []

    def work(session: Session) -> None:
        add_one(session)
        tries.append(1)
        if len(tries) == 1:
            end_connection(db, session)
        session.execute(text("SELECT 1"))

    db.run(work)
    assert (len(tries), value(db)) == (2, 1)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_reading_survives_a_connection_that_the_server_ends(db: Database) -> None:
    with db.read() as session:
        end_connection(db, session)
        assert session.execute(text("SELECT value FROM figures")).scalar() == 0


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_transactions_that_hold_all_connections_still_learn_the_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, both = Database(database_url, threads=1), Barrier(2)
    db.now()
    monkeypatch.setattr("pipeline.storage.database.CLOCK_S", 0.0)

    def work(session: Session) -> datetime:
        session.execute(text("SELECT 1"))
        both.wait(60)
        return db.now()

    with ThreadPoolExecutor(2) as pool:
        times = list(pool.map(lambda _: db.run(work), range(2)))
    db.dispose()
    assert abs(times[0] - times[1]) < timedelta(seconds=20)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_each_thread_has_its_own_connection_on_sqlite(db: Database) -> None:
    together = Barrier(32)

    def read(_: int) -> int:
        with db.read() as session:
            session.execute(text("SELECT 1"))
            return together.wait(60)

    with ThreadPoolExecutor(32) as pool:
        assert sorted(pool.map(read, range(32))) == list(range(32))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_run_waits_for_a_connection_of_a_pool_in_full_use(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full, tried = Database(database_url, threads=1), Event()
    monkeypatch.setattr(full.engine.pool, "_timeout", 0.01)
    warned = database.log.warning
    monkeypatch.setattr(database.log, "warning", lambda *args, **fields: (tried.set(), warned(*args, **fields)))
    with ThreadPoolExecutor(1) as pool, full.engine.connect(), full.engine.connect() as second:
        waiting = pool.submit(full.run, lambda session: session.execute(text("SELECT 41 + 1")).scalar())
        assert tried.wait(60), "the pool has refused a connection"
        second.close()
        assert waiting.result(60) == 42
    full.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_run_resolves_a_deadlock(db: Database) -> None:
    with db.transaction() as tx:
        tx.execute(text("INSERT INTO figures VALUES ('b', 0)"))
    first_has, second_has = Event(), Event()

    def work(session: Session, first: str, second: str, have: Event, others: Event) -> None:
        statement = text("UPDATE figures SET value = value + 1 WHERE name = :name")
        session.execute(statement, {"name": first})
        have.set()
        others.wait(60)
        session.execute(statement, {"name": second})

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(db.run, lambda session: work(session, "a", "b", first_has, second_has))
        second = pool.submit(db.run, lambda session: work(session, "b", "a", second_has, first_has))
        first.result(60)
        second.result(60)
    with db.read() as session:
        assert session.execute(text("SELECT name, value FROM figures ORDER BY name")).all() == [("a", 2), ("b", 2)]


def test_reading_does_not_block_a_writer_nor_wait_for_one(db: Database) -> None:
    with db.read() as reading:
        assert reading.execute(text("SELECT value FROM figures")).scalar() == 0
        with ThreadPoolExecutor(1) as pool:
            pool.submit(db.run, add_one).result(5)
    with db.transaction() as session:
        add_one(session)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(value, db).result(5) == 1, "only the committed value, not the open transaction's"
    assert value(db) == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_is_set_up_for_many_processes(db: Database, data_dir: Path) -> None:
    with db.engine.connect() as connection:
        pragmas = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas]
    assert values == ["wal", 1, 1, 30_000]
    assert Database(f"sqlite:///{data_dir / 'new' / 'deep' / 'x.db'}").is_sqlite
    assert (data_dir / "new" / "deep").stat().st_mode & 0o777 == 0o700


def test_a_plain_postgresql_url_gets_the_installed_driver() -> None:
    for name in ("postgresql", "postgres"):
        db = Database(f"{name}://user:pw@nowhere.example/x")
        assert db.engine.dialect.driver == "psycopg"
        assert "pw" not in repr(db.engine.url)
        db.dispose()


def sqlite_error(message: str) -> DBAPIError:
    return OperationalError("statement", {}, sqlite3.OperationalError(message))


def postgres_error(code: str) -> DBAPIError:
    return OperationalError("statement", {}, psycopg.errors.lookup(code)("the server said so"))


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (sqlite_error("database is locked"), True),
        (sqlite_error("database table is locked: pages"), True),
        (sqlite_error("database is busy"), True),
        (sqlite_error("disk I/O error"), False),
        (sqlite_error("database or disk is full"), False),
        (sqlite_error("attempt to write a readonly database"), False),
        (sqlite_error("no such table: pages"), False),
        (postgres_error("40001"), True),  # serialization failure
        (postgres_error("40P01"), True),  # deadlock
        (postgres_error("55P03"), True),  # lock not available
        (postgres_error("57P01"), True),  # the server shuts down
        (postgres_error("57P03"), True),  # the server starts
        (postgres_error("08006"), True),  # connection failure
        (postgres_error("53100"), False),  # disk full
        (postgres_error("42P01"), False),  # no such table
        (postgres_error("22001"), False),  # value too long
        (OperationalError("", {}, psycopg.OperationalError("connection failed: connection refused")), True),
        (OperationalError("", {}, psycopg.OperationalError("server closed the connection unexpectedly")), True),
        (InterfaceError("", {}, psycopg.InterfaceError("the connection is closed")), True),
        (IntegrityError("", {}, sqlite3.IntegrityError("UNIQUE constraint failed: locked.busy")), False),
        (OperationalError("", {}, Exception("any"), connection_invalidated=True), True),
    ],
)
def test_passing_errors_are_distinguished_from_permanent_ones(error: DBAPIError, passing: bool) -> None:
    assert is_passing(error) is passing


@pytest.mark.parametrize("strange", ["half a letter \ud800", "caf\udce9", "a\0b", 10**30, -(10**30)])
def test_values_that_no_database_can_hold_match_nothing_or_are_refused(db: Database, strange: str | int) -> None:
    column = "name" if isinstance(strange, str) else "value"
    with suppress(UserError), db.read() as session:
        assert not session.execute(text(f"SELECT * FROM figures WHERE {column} = :it"), {"it": strange}).all()

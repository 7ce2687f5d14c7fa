"""One database, SQLite or PostgreSQL, with the same guarantees: short transactions that survive its restart."""

import math
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import structlog
from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import sessionmaker

from pipeline.engine import (
    outbox,  # noqa: F401  # writes events before a commit
    privacy,
)
from pipeline.engine.claims import Tries
from pipeline.engine.errors import UserError
from pipeline.engine.transaction import Dispatch, ReadTx, Tx
from pipeline.settings import Settings
from pipeline.storage import database_url

log = structlog.get_logger(__name__)
Result = TypeVar("Result")

BUSY_TIMEOUT_S = 30
CLOCK_S = 60.0
"""How long the server's time is extrapolated before it is read again."""
RIDE_OVER_S = 60.0
"""How long `run` retries while the database is unavailable: longer than a restart takes."""
# PostgreSQL: serialization failure, deadlock, and the classes of lost connections and of a server shutting down.
_PASSING = ("40001", "40P01", "08", "57P", "55P03")


_PATIENCE = "patience_s"
_MOST_SHOWN = 200


class _Reading(ReadTx):
    """A session that retries each statement while the database is unavailable: repeated reads are harmless."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return _riding_over(lambda: super(_Reading, self).execute(*args, **kwargs), self.info[_PATIENCE], self.rollback)


class Database:
    """Transactions on one database. Create it after a fork: connections do not survive a fork.

    `threads`: how many threads use it at once; the pool holds a connection for each. `settings`: passed to
    transactions. `send` receives their dispatches after their commit. Raises `UserError` for an invalid URL.
    """

    transactions = Tx

    def __init__(
        self,
        url: str,
        threads: int = 10,
        settings: Settings | None = None,
        send: Callable[[Dispatch], object] = lambda _: None,
    ) -> None:
        self.url = database_url.read(url)
        self.patience_s = RIDE_OVER_S
        """How long to retry while the database is unavailable, by default."""
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = self._sqlite(threads) if self.is_sqlite else self._server(threads)
        # The clock is looked up each time: tests set it.
        knows: dict[str, Any] = {"settings": settings, "clock": lambda: self.now(), "expire_on_commit": False}  # noqa: PLW0108
        self._session = sessionmaker(self.engine, class_=self.transactions, **knows)
        self.send = send
        read_only = self.engine.execution_options(read_only=True)
        self._clock = -math.inf, datetime.min.replace(tzinfo=UTC)
        self._asking = Lock()
        self._reading = sessionmaker(read_only, class_=_Reading, **knows)

    def _sqlite(self, threads: int) -> Engine:
        if self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True, mode=privacy.PRIVATE_FOLDER)
        # With separate connections, no thread waits for the connection of a thread that waits for the write lock.
        engine = create_engine(
            self.url,
            pool_size=threads,
            max_overflow=-1,
            hide_parameters=True,
            connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
        )
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _server(self, threads: int) -> Engine:
        return create_engine(
            self.url,
            pool_size=threads,
            max_overflow=threads,
            pool_pre_ping=True,
            pool_recycle=1800,
            hide_parameters=True,
            connect_args={"connect_timeout": 10},
        )

    @contextmanager
    def transaction(self, info: dict[Any, Any] | None = None) -> Iterator[Tx]:
        """Open a transaction that may write; commit at the end, or roll back on an exception. `info`: the session's.

        Sends no dispatches: see `run`.
        """
        with self._session(info=info) as session, session.begin():
            yield session

    @contextmanager
    def read(self, *, patience_s: float | None = None) -> Iterator[ReadTx]:
        """Open a transaction that only reads: on SQLite it neither waits for a writer nor blocks one.

        Retries each statement for up to `patience_s` (default: the database's) while the database is busy or
        unavailable.
        """
        with self._reading(info={_PATIENCE: self.patience_s if patience_s is None else patience_s}) as session:
            yield session

    def run(self, work: Callable[[Tx], Result], *, patience_s: float | None = None) -> Result:
        """Run `work` in a transaction and return its result; retry for up to `patience_s` while the database is busy or
        unavailable.

        Sends its dispatches after the commit. `work` must be safe to repeat, since an earlier try may have committed
        before its answer was lost: every write in it compares with values it read or names its claim. If an answer is
        lost after a claim, the next try claims the same again. Raises `UserError` for values that it cannot store.
        """
        tries, dispatch = Tries(), Dispatch()

        def attempt() -> Result:
            tries.begin()
            with self.transaction(info={Tries.KEY: tries, Dispatch: dispatch}) as session:
                return work(session)

        result = _riding_over(attempt, self.patience_s if patience_s is None else patience_s)
        if dispatch:
            self.send(dispatch)
        return result

    def now(self) -> datetime:
        """Return the database's time, with which rows are compared: hosts' clocks may be hours apart.

        Reads it once a minute, and extrapolates. SQLite uses this host's clock.
        """
        if self.is_sqlite:
            return datetime.now(UTC)
        read_at, time_then = self._clock
        if read_at == -math.inf:
            read_at, time_then = self._clock = self._ask_time()
        elif time.monotonic() - read_at > CLOCK_S and self._asking.acquire(blocking=False):
            # One thread asks, the others extrapolate: asking in a transaction takes a second connection of the pool.
            try:
                read_at, time_then = self._clock = self._ask_time()
            finally:
                self._asking.release()
        return time_then + timedelta(seconds=time.monotonic() - read_at)

    def _ask_time(self) -> tuple[float, datetime]:
        """Return (this process's monotonic time, the database's time at that moment)."""
        with self.read() as session:
            before = time.monotonic()
            answer: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
            return (before + time.monotonic()) / 2, answer.astimezone(UTC)

    def checkpoint(self) -> None:
        """Truncate SQLite's log, so that it keeps no overwritten data, as far as readers allow. Does nothing on
        PostgreSQL."""
        if not self.is_sqlite:
            return
        connection = self.engine.raw_connection()  # outside any transaction
        try:
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
        finally:
            connection.close()

    def dispose(self, *, close: bool = True) -> None:
        """Close all connections; `close=False` in a forked child, whose parent still uses them."""
        self.engine.dispose(close=close)


def _riding_over(
    attempt: Callable[[], Result], patience_s: float, before_next: Callable[[], object] = lambda: None
) -> Result:
    deadline = time.monotonic() + patience_s
    wait_s = 0.05
    while True:
        try:
            return attempt()
        except UnicodeEncodeError as error:
            raise UserError(f"not text in UTF-8: {error.object[:_MOST_SHOWN]}", code="bad_text") from error
        except OverflowError as error:  # SQLite's numbers have 64 bits
            raise UserError("a number is too large", code="too_large") from error
        except (DBAPIError, PoolTimeout) as error:
            if isinstance(error, DataError) and "NUL" in str(error.orig):  # only PostgreSQL refuses it
                raise UserError("text must not contain NUL characters", code="bad_text") from error
            if not is_passing(error) or time.monotonic() + wait_s > deadline:
                raise
            name = type(getattr(error, "orig", error)).__name__
            log.warning("database.retry", error=name, wait_s=round(wait_s, 2))
        before_next()
        time.sleep(wait_s * (0.5 + random.random()))  # noqa: S311  # spreads load, guards nothing
        wait_s = min(wait_s * 2, 2.0)


def is_passing(error: Exception) -> bool:
    """Whether repeating the transaction may succeed: a lock, a lost connection, a restart or a full pool stopped it."""
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return True
    state = getattr(error.orig, "sqlstate", None)
    if state:
        return str(state).startswith(_PASSING)
    if not isinstance(error, OperationalError):
        return False
    # psycopg has no SQLSTATE without a server to send it; SQLite never has one.
    text = str(error.orig).lower()
    return any(sign in text for sign in ("locked", "busy", "connection", "server closed", "terminat"))


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # Autocommit: SQLAlchemy's own BEGIN is sent by _begin_sqlite, as IMMEDIATE.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        "synchronous=NORMAL",
        "foreign_keys=ON",
        "secure_delete=ON",
        f"busy_timeout={BUSY_TIMEOUT_S * 1000}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    _use_wal(cursor)
    cursor.close()


def _use_wal(cursor: Any) -> None:
    """Turn on write-ahead logging. Retry, since SQLite refuses it while others open the new database."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _begin_sqlite(connection: Any) -> None:
    # IMMEDIATE: upgrading from reading to writing can fail at once with "database is locked".
    read_only = connection.get_execution_options().get("read_only")
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

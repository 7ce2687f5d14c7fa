"""The kernel's database on virtual time: real transactions, whose commits may fail, or succeed without an answer.

A process that stalls in a transaction keeps its locks: the database refuses them to others at once, and they retry on
virtual time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import OperationalError

from pipeline.engine.transaction import ReadTx, Tx
from pipeline.settings import Settings
from pipeline.storage.database import Database, _begin_sqlite
from tests.simulation.world import World


class SimulatedDatabase(Database):
    """One database for all seeds."""

    world: World
    after_commit: Callable[[], None]

    def __init__(self, url: str) -> None:
        self.transactions = self._stepping()
        super().__init__(url, settings=Settings.model_construct())

    def _sqlite(self, _threads: int) -> Engine:
        engine = create_engine(self.url, max_overflow=-1, connect_args={"timeout": 0, "check_same_thread": False})
        event.listen(engine, "connect", _configure)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _server(self, _pool_size: int) -> Engine:
        return create_engine(
            self.url, max_overflow=-1, connect_args={"options": "-c lock_timeout=1 -c synchronous_commit=off"}
        )

    def _stepping(self) -> type[Tx]:
        db = self

        class Stepping(Tx):
            """A transaction in which the acting process may die or stall before each statement."""

            def execute(self, *args: Any, **kwargs: Any) -> Any:
                if db.world.faults.inside:
                    db.world.point("inside a transaction")
                return super().execute(*args, **kwargs)

        return Stepping

    def now(self) -> datetime:
        return self.world.now()

    def go_by(self, settings: Settings) -> None:
        """Transactions know these settings: each seed has its own."""
        self._session.configure(settings=settings)

    @contextmanager
    def read(self, *, patience_s: float | None = None) -> Iterator[ReadTx]:
        self.world.point("before reading")
        with super().read(patience_s=patience_s) as session:
            yield session

    @contextmanager
    def transaction(self, info: dict[Any, Any] | None = None) -> Iterator[Tx]:
        world = self.world
        world.point("before a transaction")
        with super().transaction(info) as session:
            yield session
            if world.acting and world.chance(world.faults.commit_lost):
                world.note("commit fails")
                raise _lost()
        self.after_commit()
        if world.acting and world.chance(world.faults.commit_ambiguous):
            world.note("commit without an answer")
            raise _lost()
        world.point("after a commit")


def _lost() -> OperationalError:
    return OperationalError("COMMIT", None, Exception("connection lost"))


def _configure(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA journal_mode=WAL")

"""The kernel's database on virtual time: real transactions, whose commits may fail, or succeed without an answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from pipeline.storage.database import Database, _begin_sqlite
from tests.simulation.world import World


class SimulatedDatabase(Database):
    """One database for all seeds; on SQLite, in memory."""

    world: World
    after_commit: Callable[[], None]

    def __init__(self, url: str = "sqlite://") -> None:
        super().__init__(url)

    def _sqlite(self, _threads: int) -> Engine:
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        event.listen(engine, "connect", _configure)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def now(self) -> datetime:
        return self.world.now()

    @contextmanager
    def read(self, *, patience_s: float | None = None) -> Iterator[Session]:
        self.world.point("before reading")
        with super().read(patience_s=patience_s) as session:
            yield session

    @contextmanager
    def transaction(self, info: dict[Any, Any] | None = None) -> Iterator[Session]:
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

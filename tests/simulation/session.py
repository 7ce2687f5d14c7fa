"""State that all seeds of a run share: a redis-server, a database, and the patched globals of the kernel."""

import gc
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import structlog
from redis import RedisError
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

import pipeline.engine.breaker
from pipeline.engine import deliveries, retry
from pipeline.engine.gate import Window
from pipeline.engine.retry import MAX_RELEASES
from pipeline.engine.tables import table_of
from pipeline.engine.traces import AiCall
from pipeline.standalone.redis_server import find_server
from tests.simulation import provider, spending
from tests.simulation.database import SimulatedDatabase
from tests.simulation.fleet import Fleet, Shape
from tests.simulation.flow import FLOW, MAX_ATTEMPTS, Base
from tests.simulation.redis_client import Scripts, SimulatedRedis
from tests.simulation.wire import Wire
from tests.simulation.worker import QUEUES
from tests.simulation.world import Faults, Violation, World

SETTLE_S = 240.0
"""The time after the last fault to settle everything: leases expire, waits end, sweeps find lost work."""


POISON_S = (MAX_RELEASES + MAX_ATTEMPTS) * provider.POLICY.longest_s
"""How long a unit that the provider always refuses may keep the breaker open, if no other unit succeeds."""
MEMORY = ("/dev/shm",)
"""Folders whose files are in memory."""


class Session:
    """Runs seeds. A context manager: leaving it stops the server."""

    def __init__(self, database_url: str = "") -> None:
        """`database_url`: of a database on a server; empty: SQLite, in memory as far as the system has files there."""
        self._stack = ExitStack()
        self._url = database_url
        self.fleet: Any = None
        self.scripts = Scripts()
        self.shape: Callable[[World], Shape] = shape_of
        self.faults: Callable[[random.Random], Faults] = faults_of

    def __enter__(self) -> "Session":
        folder = Path(tempfile.mkdtemp(prefix="sim", dir=next((path for path in MEMORY if Path(path).is_dir()), None)))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        socket = folder / "s"
        command = [find_server(), "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        self._stack.callback(server.wait)
        self._stack.callback(server.kill)
        self.redis = SimulatedRedis(unix_socket_path=str(socket), decode_responses=True, protocol=2)
        self.redis.wire = _connect(str(socket))
        self._stack.callback(self.redis.wire.close)
        self.redis.scripts = self.scripts
        self.db = SimulatedDatabase(self._url or f"sqlite:///{folder / 'db'}")
        Base.metadata.create_all(self.db.engine)
        for table in (table_of(AiCall), *spending.TABLES):
            table.create(self.db.engine)
        self._stack.callback(self.db.dispose)
        self.scan = self._scanner()
        self._stack.enter_context(self._patched())
        gc.freeze()  # skips the existing objects, which would take a tenth of the time to collect
        self._stack.callback(gc.unfreeze)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _scanner(self) -> Callable[[str], Iterable[Any]]:
        if self.db.is_sqlite:
            connection = self.db.engine.raw_connection()
            return lambda query: connection.driver_connection.execute(query).fetchall()  # type: ignore[union-attr]
        options = {"options": "-c timezone=UTC"}
        engine = create_engine(self.db.url, isolation_level="AUTOCOMMIT", connect_args=options)
        self._stack.callback(engine.dispose)
        beside = self._stack.enter_context(engine.connect())
        return lambda query: beside.exec_driver_sql(query).fetchall()

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Patch the globals of a process (identity, context, deliveries, clock) with those of the acting process."""
        identity, clock = _Identity(self), _Clock(self)
        chance = SimpleNamespace(random=self._random)
        by_name = {
            "tasks.flow": {
                "identity": identity,
                "get_context": self._context,
                "gates": _Gates(self),
                "app": _app(),
                "flow_tasks": lambda _flow: self._now().tasks,
                "time": clock,
                "threading": SimpleNamespace(Thread=self._thread),
            },
            "tasks.consumer": {
                "identity": identity,
                "holder_of": lambda name: self._now().holder_of(name),
                "gate_of": lambda queue: self._now().gate if queue == provider.QUEUE else None,
            },
            "tasks.celery_internals.messages": {"QoS": SimpleNamespace(ack=lambda broker, tag: broker.returned(tag))},
            "tasks.maintenance": {
                "gates": _Gates(self),
                "get_context": self._context,
                "flows": lambda: (FLOW,),
                "time": clock,
                "uuid4": self._uuid,
                "all_flow_tasks": lambda: (self._now().tasks,),
            },
            "pipeline.engine.claims": {"uuid4": self._uuid},
            "pipeline.engine.gate": {"time": clock},
            "pipeline.engine.isolation": {"log": SimpleNamespace(exception=self._isolated)},
            "pipeline.engine.guarded_call": {"time": clock},
            "pipeline.storage.database": {"time": clock, "random": chance},
            "pipeline.engine.retry": {"random": chance},
            "pipeline.engine.breaker": {"datetime": SimpleNamespace(now=lambda _zone: self._world().host_time())},
        }
        with ExitStack() as stack:
            stack.callback(structlog.configure, **structlog.get_config())
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
            stack.callback(logging.disable, logging.NOTSET)
            logging.disable(logging.CRITICAL)
            for module, names in by_name.items():
                for name, value in names.items():
                    stack.enter_context(patch(f"{module}.{name}", value))
            stack.enter_context(patch.object(deliveries, "_under_way", _UnderWay(self)))
            yield

    def _isolated(self, event: str, **facts: Any) -> None:
        """Fail the seed when the kernel continues after an exception that no unavailable service explains."""
        error = sys.exc_info()[1]
        if not isinstance(error, (RedisError, OperationalError)):
            world = self._world()
            world.note(event, **facts)
            world.failure = world.failure or error

    def _now(self) -> Fleet:
        return self.fleet

    def _world(self) -> World:
        return self._now().world

    def _context(self) -> Any:
        return self._now().context

    def _thread(self, *, target: Callable[[], None], **_: Any) -> Any:
        world = self._world()
        process = world.acting
        assert process is not None
        return SimpleNamespace(start=lambda: world.at(0, lambda: world.spawn(process, target)))

    def _random(self) -> float:
        return self._world().rng.random()

    def _uuid(self) -> UUID:
        return UUID(int=self._world().rng.getrandbits(128))

    def run(self, seed: int) -> World:
        """Run one seed. Returns its world, whose `failure` is the broken invariant or None."""
        rng = random.Random(seed)
        world = World(seed, self.faults(rng))
        self.redis.world = world
        self.redis.wire.call("FLUSHALL")
        with self.db.engine.connect() as connection:
            for table in ("ai_calls", "spend_charges", "spend_reservations", "sim_units"):
                connection.exec_driver_sql(f"DELETE FROM {table}")
            connection.exec_driver_sql("DELETE FROM sim_scopes")
            connection.commit()
        fleet = self.fleet = Fleet(world, self.redis, self.db, self.shape(world), self.scan)
        try:
            fleet.begin()
            settle_s = SETTLE_S * fleet.shape.times + (POISON_S if world.faults.poison else 0)
            world.run(lambda: False, fleet.shape.faults_s)
            if fleet.shape.stays_closed:
                world.run(lambda: fleet.observer.everything_settled(but_gated=True), settle_s)
                fleet.observer.must_be_settled(settle_s, but_gated=True)
                fleet.open_for_good()
            world.run(fleet.observer.everything_settled, settle_s)
            fleet.observer.must_be_settled(settle_s)
            world.run(lambda: False, 75)
            world.acting = None
            fleet.observer.nothing_left()
        except (Exception, Violation) as error:  # noqa: BLE001  # a broken invariant, or an error of the kernel: report both
            world.failure = world.failure or error
        failure = world.failure
        world.end()
        world.failure = failure
        return world


def shape_of(world: World) -> Shape:
    """Choose the size of a seed's fleet."""
    rng, large = world.rng, random.Random(-world.seed).random()
    return Shape(
        scopes=rng.choice((1, 2, 2, 3, 4, 8)),
        units=rng.choice((1, 2, 3, 5)),
        places=rng.choice((1, 2, 4)),
        workers=rng.randint(1, 3),
        slots=rng.choice((12 if large < 0.01 else 1, 2, 3)),
        faults_s=rng.choice((8, 15, 25, 45)),
        limit=Window(rng.choice((2, 5, 20)), rng.choice((1.0, 5.0))),
        concurrency=rng.choice((1, 2, 8)),
        stays_closed=rng.random() < 0.15,
        busy=rng.random() < 0.15,
        times=4 if 0.01 < large < 0.02 else 1,
    )


def faults_of(rng: random.Random) -> Faults:
    """Choose a seed's faults. Each kind occurs in some seeds only, so that no fault hides another."""

    def some(likely: float, *values: float) -> float:
        return rng.choice(values) if rng.random() < likely else 0.0

    return Faults(
        kill=some(0.4, 0.001, 0.005),
        pause=some(0.5, 0.005, 0.03),
        freeze=some(0.2, 0.6),
        repeat=some(0.2, 0.01),
        redis_error=some(0.2, 0.003, 0.01),
        commit_lost=some(0.2, 0.03),
        commit_ambiguous=some(0.3, 0.03, 0.1),
        lose=some(0.4, 0.03, 0.15),
        duplicate=some(0.4, 0.03, 0.15),
        delay=some(0.3, 0.05),
        reorder=some(0.3, 0.1),
        flush_every_s=some(0.25, 15, 40),
        kill_worker_every_s=some(0.4, 8, 20),
        kill_child_every_s=some(0.3, 5, 15),
        end_worker_every_s=some(0.2, 15),
        cut_every_s=some(0.3, 5, 15),
        gate_every_s=some(0.4, 3, 10),
        limits_every_s=some(0.2, 3),
        wrong_clocks=rng.random() < 0.3,
        inside=rng.random() < 0.4,
        full_every_s=some(0.15, 8, 20),
        poison=rng.random() < 0.15,
        outage=rng.randrange(7) == 1,
        wrong_key=rng.randrange(7) == 3,
        fail_over_every_s=12.0 if rng.randrange(6) == 0 else 0.0,
    )


class _Identity:
    """Stands for `tasks.presence.identity` of the acting process."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def _process(self) -> Any:
        return self._session.fleet.world.acting

    @property
    def process_id(self) -> str:
        return self._process.id

    @property
    def worker_id(self) -> str:
        return self._process.worker.main.id

    def has(self, process_id: str) -> bool:
        return self._process.worker.has(process_id)

    def has_ended(self, process_id: str) -> bool:
        return self._process.worker.knows_ended(process_id)


class _UnderWay:
    """The deliveries of the acting process."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def _own(self) -> set[str]:
        return self._session.fleet.world.acting.under_way

    def __contains__(self, delivery: str) -> bool:
        return delivery in self._own

    def add(self, delivery: str) -> None:
        self._own.add(delivery)

    def discard(self, delivery: str) -> None:
        self._own.discard(delivery)


class _Clock:
    """As the module `time`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def monotonic(self) -> float:
        return self._session.fleet.world.now_s

    def sleep(self, seconds: float) -> None:
        self._session.fleet.world.sleep(seconds)


class _Gates:
    """As `pipeline.providers.gates`, for the one queue that has a gate."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def all_gates(self, _context: Any) -> list[Any]:
        return [self._session.fleet.gate]

    def closed_because(self, _context: Any, queue: str) -> str:
        if queue != provider.QUEUE:
            return ""
        try:
            closed = self._session.fleet.gate.inspect().closed
        except RedisError:
            return ""
        return closed[0] if closed else ""


def _app() -> Any:
    return SimpleNamespace(amqp=SimpleNamespace(queues=dict.fromkeys(QUEUES)))


def _connect(path: str) -> Wire:
    deadline = time.monotonic() + 20
    while True:
        try:
            return Wire(path)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


__all__ = ["Session", "pipeline", "retry"]

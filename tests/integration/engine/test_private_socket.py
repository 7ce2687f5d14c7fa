"""The embedded Redis's socket under the temporary folder: Penstock never connects to another user's Redis there."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import RedisError

from pipeline.engine.connection import connect, connect_async
from pipeline.engine.errors import UserError
from pipeline.engine.private_socket import ForeignSocket
from pipeline.process import new_context
from pipeline.settings import MAX_SOCKET_PATH, Settings, get_settings
from pipeline.standalone import redis_server
from tests.integration.engine.test_connection import AppOver, assert_celery_works, over
from tests.support.leftovers import short_folder
from tests.support.redis_server import RedisServer

__all__ = ["over"]
NOBODY = 65534


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings with a data folder whose path is too long for a socket."""
    temporary = short_folder()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(temporary / ("d" * MAX_SOCKET_PATH)))
    monkeypatch.delenv("PENSTOCK_REDIS_URL", raising=False)
    get_settings.cache_clear()
    yield get_settings()
    get_settings.cache_clear()
    shutil.rmtree(temporary)


@pytest.fixture
def squatter(settings: Settings) -> Iterator[RedisServer]:
    """A world-accessible Redis that listens at the embedded Redis's socket path."""
    folder = settings.redis_socket.parent
    folder.mkdir()
    with RedisServer(
        short_folder() / "redis", "--unixsocket", str(settings.redis_socket), "--unixsocketperm", "777"
    ) as server:
        yield server


def given_away(folder: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    folder.chmod(0o700)
    os.chown(folder, NOBODY, NOBODY)


def open_to_others(folder: Path) -> None:
    folder.chmod(0o711)


def linked(folder: Path) -> None:
    folder.rename(folder.with_name("theirs"))
    folder.with_name("theirs").chmod(0o700)
    folder.symlink_to(folder.with_name("theirs"))


def connections(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("stats")["total_connections_received"])


@pytest.mark.parametrize("squat", [given_away, open_to_others, linked])
def test_penstock_never_connects_to_another_user_s_redis(
    settings: Settings, squatter: RedisServer, squat: Callable[[Path], None], over: AppOver
) -> None:
    squat(settings.redis_socket.parent)
    before = connections(squatter)
    with pytest.raises(ForeignSocket, match="belongs to someone else or is open to others: remove it"):
        connect(settings.effective_redis_url).ping()
    with pytest.raises(RedisError, match="belongs to someone else"):
        asyncio.run(ask(settings.effective_redis_url))
    assert not redis_server.is_up(settings)
    assert not new_context(settings).online
    with pytest.raises(UserError, match="belongs to someone else"):
        redis_server.command(settings)
    app = over("")
    with app.connection_for_write() as connection, pytest.raises(RedisError):
        connection.connect()
    with app.connection_for_read() as connection, pytest.raises(RedisError):
        connection.clone().default_channel.client.ping()
    with pytest.raises(ForeignSocket):
        app.backend.client.ping()
    assert connections(squatter) == before + 1  # the connection of `connections` itself


async def ask(url: str) -> object:
    async with connect_async(url, retries=0) as client:
        return await client.ping()


def test_penstock_and_celery_connect_through_their_own_folder(
    settings: Settings, squatter: RedisServer, over: AppOver
) -> None:
    settings.redis_socket.parent.chmod(0o700)
    assert squatter.running
    with connect(settings.effective_redis_url) as client:
        assert client.ping()
    assert asyncio.run(ask(settings.effective_redis_url))
    assert redis_server.is_up(settings)
    assert new_context(settings).online
    assert_celery_works(over(""))
    # Each new connection checks the folder.
    client = connect(settings.effective_redis_url)
    client.connection_pool.disconnect()
    settings.redis_socket.parent.chmod(0o755)
    with pytest.raises(ForeignSocket):
        client.ping()
    client.close()

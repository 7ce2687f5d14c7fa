"""Clients of a Redis that has reached its memory limit."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import RedisError

from pipeline.engine.connection import connect, connect_async
from pipeline.engine.full_redis import RedisFull
from pipeline.engine.wakeups import plan_wakeup
from tasks.app import app
from tests.support.redis_server import RedisServer


@pytest.fixture
def full(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        server.limit_memory(1)
        yield server


def test_every_client_treats_a_full_redis_as_unreachable(full: RedisServer) -> None:
    with pytest.raises(RedisFull):
        connect(full.url, retries=0).set("key", "value")
    with pytest.raises(RedisFull):
        plan_wakeup(connect(full.url, retries=0), "documents", 1)

    async def ask() -> None:
        with pytest.raises(RedisFull):
            await connect_async(full.url, retries=0).set("key", "value")

    asyncio.run(ask())
    with app.connection_for_write(full.url) as broker, pytest.raises(broker.connection_errors):
        broker.default_channel.client.pipeline().set("key", "value").execute()


def test_a_client_retries_while_redis_is_briefly_full(full: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def memory_is_freed(seconds: float) -> None:
        pauses.append(seconds)
        full.limit_memory(0)

    monkeypatch.setattr("redis.retry.sleep", memory_is_freed)
    assert connect(full.url).set("key", "value")
    assert len(pauses) == 1


def test_other_refusals_of_redis_do_not_count_as_unreachable(full: RedisServer) -> None:
    with pytest.raises(RedisError) as refused:
        connect(full.url, retries=0).execute_command("NONSENSE")
    assert not isinstance(refused.value, RedisFull)

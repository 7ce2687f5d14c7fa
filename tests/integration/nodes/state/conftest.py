"""Fixtures that run the suite on one server and on a cluster."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pipeline.nodes.settings import GatewayRedisSettings, GatewaySettings
from pipeline.nodes.state.store import Store
from tests.support import named_redis

OpenStore = Callable[..., Store]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["single", "cluster"])
def where(request: pytest.FixtureRequest) -> GatewayRedisSettings:
    """An empty Redis of either kind."""
    if request.param == "single":
        if named_redis.ON_CLUSTER:
            pytest.skip("a cluster is named")
        return GatewayRedisSettings(url=request.getfixturevalue("redis_url"))
    cluster = request.getfixturevalue("redis_cluster")
    cluster.flush()
    return GatewayRedisSettings(mode="cluster", cluster_urls=tuple(cluster.urls))


@pytest.fixture
async def open_store(where: GatewayRedisSettings) -> AsyncIterator[OpenStore]:
    """Return a function that opens stores with further settings."""
    stores: list[Store] = []

    def make(**settings: Any) -> Store:
        own = {"stream_block_ms": 50, "dlq_min_idle_ms": 1, **settings}
        stores.append(Store(GatewaySettings(redis=where, **own), own_url=""))
        return stores[-1]

    yield make
    for store in stores:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return open_store()


@pytest.fixture
def empty(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Return a function that empties Redis with FLUSHALL."""
    single = request.node.callspec.params["where"] == "single"
    server = request.getfixturevalue("redis_server" if single else "redis_cluster")
    flush: Callable[[], None] = server.flush
    return flush

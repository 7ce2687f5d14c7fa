"""Gateway instances over one Redis, with tokens for nodes and sessions."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from pipeline.nodes.tokens import TokenKind
from pipeline.storage.context import Context
from tests.support import named_redis
from tests.support.gateway import GatewayThread, RawNode, RawSession, token
from tests.support.named_redis import NamedCluster, NamedServer
from tests.support.redis_server import RedisServer


@dataclass
class Tokens:
    """The secrets of a node's token and of a session's token."""

    node: str
    session: str


@pytest.fixture
def secrets(context: Context) -> Tokens:
    return Tokens(token(context, TokenKind.NODE, "nodes"), token(context, TokenKind.SESSION, "sessions"))


@pytest.fixture
def other_session_token(context: Context) -> str:
    return token(context, TokenKind.SESSION, "others")


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


Start = Callable[..., GatewayThread]


@pytest.fixture
def state_server(request: pytest.FixtureRequest) -> RedisServer | NamedServer | NamedCluster:
    """The Redis with the gateway's state."""
    server = request.getfixturevalue("redis_cluster" if named_redis.ON_CLUSTER else "redis_server")
    assert isinstance(server, RedisServer | NamedServer | NamedCluster)
    return server


@pytest.fixture
def redis_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The gateway's settings for its Redis. Empty: the Redis of the context. Modules override this fixture."""
    if not named_redis.ON_CLUSTER:
        return {}
    cluster = request.getfixturevalue("redis_cluster")
    cluster.flush()
    return {"redis": {"mode": "cluster", "cluster_urls": cluster.urls}}


@pytest.fixture
def start(context: Context, closing: ExitStack, redis_settings: dict[str, Any]) -> Start:
    """Start an instance: `start("a", heartbeat_ms=100)`."""

    def started(instance_id: str = "a", **settings: Any) -> GatewayThread:
        return closing.enter_context(GatewayThread(context, instance_id, **redis_settings, **settings))

    return started


@pytest.fixture
def gateway(start: Start) -> GatewayThread:
    return start()


ConnectNode = Callable[..., RawNode]
ConnectSession = Callable[..., RawSession]


@pytest.fixture
def connect_node(secrets: Tokens, closing: ExitStack) -> ConnectNode:
    """Connect a node: `connect_node(gateway, "n1", slots=2)`."""

    def connected(gateway: GatewayThread, node_id: str = "n1", **details: Any) -> RawNode:
        return closing.enter_context(RawNode(gateway.url, secrets.node, node_id, **details))

    return connected


@pytest.fixture
def connect_session(secrets: Tokens, closing: ExitStack) -> ConnectSession:
    """Open a session."""

    def opened(gateway: GatewayThread, session_id: str = "", secret: str = "") -> RawSession:
        return closing.enter_context(RawSession(gateway.url, secret or secrets.session, session_id))

    return opened

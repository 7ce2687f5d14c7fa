"""How Penstock connects to Redis: the only place that makes clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis, RedisError
from redis import asyncio as redis_asyncio
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelManagedConnection as AsyncSentinelManagedConnection
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.connection import SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelManagedConnection

from pipeline.engine import full_redis
from pipeline.engine.private_socket import AsyncPrivateSocket, PrivateSocket
from pipeline.settings.redis_url import RedisUrl, RedisUrlError

full_redis.tell_apart()
TIMEOUT_S, CONNECT_TIMEOUT_S = 10.0, 5.0
"""For an answer, and for a connection: without limits, one waits for ever for a host that lost its power."""
_SENTINEL_TIMEOUT_S = 2.0
"""Sentinels answer from memory: one that does not is passed over."""


def connect(url: str, *, retries: int = 8, timeout_s: float = TIMEOUT_S) -> "Redis":
    """A client that returns text, rides over a restart of the server (about 5 s), and never waits for ever.

    `retries=0`: one that fails at once. With `sentinel://`, each connection asks the sentinels for the master.
    Raises `RedisUrlError`.
    """
    where = RedisUrl.parse(url)
    options = _options(where, timeout_s) | {
        "db": where.db,
        "decode_responses": True,
        "retry": Retry(_backoff(retries), retries),
    }
    if where.path:
        local = Redis(unix_socket_path=where.path, **options)
        if where.private:
            local.connection_pool.connection_class = PrivateSocket
        return local
    if not where.master:
        host, port = where.hosts[0]
        return Redis(host, port, **options)
    known = sentinel_options(where)
    options |= {"connection_class": _TlsToMaster if where.tls else _ToMaster}
    options.pop("ssl", None)
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        where.hosts, sentinel_kwargs=known["sentinel_kwargs"], **options
    )
    client: Redis = sentinels.master_for(known["master_name"])  # type: ignore[no-untyped-call]
    return client


def reach(url: str) -> None:
    """Raise `RedisError` at once if this Redis is away; ordinary clients would retry for seconds."""
    client = connect(url, retries=0)
    try:
        client.ping()
    finally:
        client.close()


def connect_async(url: str, *, retries: int = 8, timeout_s: float = TIMEOUT_S) -> redis_asyncio.Redis:
    """Like `connect`, for asyncio, and it returns bytes."""
    where = RedisUrl.parse(url)
    options = _options(where, timeout_s) | {"db": where.db, "retry": AsyncRetry(_backoff(retries), retries)}
    if where.path:
        local = redis_asyncio.Redis(unix_socket_path=where.path, **options)
        if where.private:
            local.connection_pool.connection_class = AsyncPrivateSocket
        return local
    if not where.master:
        host, port = where.hosts[0]
        return redis_asyncio.Redis(host=host, port=port, **options)
    known = sentinel_options(where)
    options |= {"connection_class": _AsyncTlsToMaster if where.tls else _AsyncToMaster}
    options.pop("ssl", None)
    asked = known["sentinel_kwargs"] | {"retry": AsyncRetry(NoBackoff(), 0)}
    sentinels = AsyncSentinel(where.hosts, sentinel_kwargs=asked, **options)  # type: ignore[no-untyped-call]
    client: redis_asyncio.Redis = sentinels.master_for(known["master_name"], redis_class=_AsyncByMaster)
    return client


def connect_cluster(urls: Sequence[str], *, retries: int = 8, timeout_s: float = TIMEOUT_S) -> RedisCluster:
    """A client of the Redis Cluster that these servers belong to, for asyncio; it returns bytes.

    Credentials and TLS are those of the first URL. Raises `RedisUrlError`.
    """
    found = [RedisUrl.parse(url) for url in urls]
    if not found or any(where.path or where.master or where.db for where in found):
        raise RedisUrlError(
            "servers of a cluster are given as redis://host:port or rediss://host:port, without a database"
        )
    nodes = [ClusterNode(host, port) for where in found for host, port in where.hosts]
    retry = AsyncRetry(_backoff(retries), retries)
    return RedisCluster(startup_nodes=nodes, retry=retry, **_options(found[0], timeout_s))


def _options(where: RedisUrl, timeout_s: float) -> dict[str, Any]:
    """What clients of every kind are given."""
    options: dict[str, Any] = {
        "username": where.username or None,
        "password": where.password or None,
        "protocol": where.protocol,
        "socket_timeout": timeout_s,
        "health_check_interval": 15,
        "retry_on_error": [RedisConnectionError, RedisTimeoutError, full_redis.RedisFull],
    }
    if where.path:
        return options
    options |= {"socket_connect_timeout": min(timeout_s, CONNECT_TIMEOUT_S)}
    return options | ({"ssl": True, **where.tls} if where.tls else {})


def _backoff(retries: int) -> ExponentialBackoff | NoBackoff:
    return ExponentialBackoff(cap=1.0, base=0.05) if retries else NoBackoff()


class _ToMaster(SentinelManagedConnection):
    """A connection that asks the sentinels whenever it is made anew.

    redis-py's own asks them for a command's first try only: further ones go to the old master (redis-py issue 3874).
    """

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self._sock:
            self.connect()  # type: ignore[no-untyped-call]
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]


class _TlsToMaster(_ToMaster, SSLConnection):
    """The same over TLS."""


class _AsyncToMaster(AsyncSentinelManagedConnection):
    """The same for asyncio."""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self.is_connected:
            await self.connect()  # type: ignore[no-untyped-call]
        await super().send_packed_command(command, check_health)


class _AsyncTlsToMaster(_AsyncToMaster, AsyncSSLConnection):
    """The same over TLS."""


class _AsyncByMaster(redis_asyncio.Redis):
    """A client that leaves no connection to a sentinel behind, either."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        for sentinel in self.connection_pool.sentinel_manager.sentinels:  # type: ignore[attr-defined]
            await sentinel.aclose()


def sentinel_options(where: RedisUrl) -> dict[str, Any]:
    """How to ask the sentinels, as Celery's transport options name it; empty if there are none."""
    if not where.master:
        return {}
    sentinel = {
        "username": where.sentinel_username or None,
        "password": where.sentinel_password or None,
        "socket_timeout": _SENTINEL_TIMEOUT_S,
        "socket_connect_timeout": _SENTINEL_TIMEOUT_S,
        # Without: redis-py would try a dead sentinel for seconds, before each turn to a living one.
        "retry": Retry(NoBackoff(), 0),
    }
    return {
        "master_name": where.master,
        "sentinel_kwargs": sentinel | ({"ssl": True, **where.tls} if where.tls else {}),
    }


@dataclass(frozen=True)
class SentinelView:
    """What one sentinel says of the master."""

    sentinel: str
    """Its `host:port`."""
    master: str = ""
    """The `host:port` of the server that it takes for the master."""
    replicas: int = 0
    """Living ones, of which one would take its place."""
    quorum: int = 0
    """How many sentinels must agree that the master is gone."""
    problem: str = ""
    """Why it says nothing, or why there is no master to use."""


def ask_sentinels(url: str) -> list[SentinelView]:
    """What each sentinel of the URL says; empty if it names none."""
    where = RedisUrl.parse(url)
    return [_ask(where, host, port) for host, port in where.hosts] if where.master else []


def _ask(where: RedisUrl, host: str, port: int) -> SentinelView:
    address = f"{host}:{port}"
    options = sentinel_options(where)["sentinel_kwargs"]
    with Redis(host, port, decode_responses=True, **options) as sentinel:
        try:
            found = sentinel.sentinel_masters().get(where.master)
            if found is None:
                return SentinelView(address, problem=f"knows no master '{where.master}'")
            living = [one for one in sentinel.sentinel_slaves(where.master) if not one["is_sdown"]]
        except RedisError as error:
            return SentinelView(address, problem=str(error))
    down = found["is_sdown"] or found["is_odown"]
    return SentinelView(
        address,
        f"{found['ip']}:{found['port']}",
        len(living),
        found["quorum"],
        problem="takes the master for dead" if down else "",
    )

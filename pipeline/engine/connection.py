"""Connections to Redis: the only module that creates clients."""

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
"""Limits for an answer and for a connection. Without limits, a client waits for ever for a host that lost its power."""
_SENTINEL_TIMEOUT_S = 2.0
"""Sentinels answer from memory: clients skip a slow one."""


def connect(url: str, *, retries: int = 8, timeout_s: float = TIMEOUT_S) -> "Redis":
    """Return a client that decodes text. It connects on first use, waits at most `timeout_s` for each answer, and after
    a lost connection, a timeout, or while Redis is full, repeats the command up to `retries` times (by default for
    about 5 s, as a restart of the server takes). Redis may already have executed a repeated command.

    With `retries=0` a command fails at once. With `sentinel://`, each connection asks the sentinels for the master.
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
    """Raise `RedisError` if this Redis does not answer the first try; ordinary clients would retry for seconds. Raises
    `RedisUrlError` for an invalid URL."""
    client = connect(url, retries=0)
    try:
        client.ping()
    finally:
        client.close()


def connect_async(url: str, *, retries: int = 8, timeout_s: float = TIMEOUT_S) -> redis_asyncio.Redis:
    """Return a client for asyncio with the same retries and limits as that of `connect`; it returns bytes. Raises
    `RedisUrlError`."""
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
    of_sentinels = known["sentinel_kwargs"] | {"retry": AsyncRetry(NoBackoff(), 0)}
    sentinels = AsyncSentinel(where.hosts, sentinel_kwargs=of_sentinels, **options)  # type: ignore[no-untyped-call]
    client: redis_asyncio.Redis = sentinels.master_for(known["master_name"], redis_class=_AsyncByMaster)
    return client


def connect_cluster(urls: Sequence[str], *, retries: int = 8, timeout_s: float = TIMEOUT_S) -> RedisCluster:
    """Return an asyncio client of the Redis Cluster that these servers belong to; it returns bytes.

    Credentials and TLS come from the first URL. Raises `RedisUrlError`.
    """
    servers = [RedisUrl.parse(url) for url in urls]
    if not servers or any(where.path or where.master or where.db for where in servers):
        raise RedisUrlError("write servers of a cluster as redis://host:port or rediss://host:port, without a database")
    nodes = [ClusterNode(host, port) for where in servers for host, port in where.hosts]
    retry = AsyncRetry(_backoff(retries), retries)
    return RedisCluster(startup_nodes=nodes, retry=retry, **_options(servers[0], timeout_s))


def _options(where: RedisUrl, timeout_s: float) -> dict[str, Any]:
    """The options of clients of every kind."""
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
    """A connection that asks the sentinels at each reconnection.

    redis-py asks them at a command's first try only: retries go to the old master (redis-py issue 3874).
    """

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self._sock:
            self.connect()  # type: ignore[no-untyped-call]
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]


class _TlsToMaster(_ToMaster, SSLConnection):
    """The same connection over TLS."""


class _AsyncToMaster(AsyncSentinelManagedConnection):
    """The same connection for asyncio."""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self.is_connected:
            await self.connect()  # type: ignore[no-untyped-call]
        await super().send_packed_command(command, check_health)


class _AsyncTlsToMaster(_AsyncToMaster, AsyncSSLConnection):
    """The same connection over TLS."""


class _AsyncByMaster(redis_asyncio.Redis):
    """A client that closes its connections to sentinels too."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        for sentinel in self.connection_pool.sentinel_manager.sentinels:  # type: ignore[attr-defined]
            await sentinel.aclose()


def sentinel_options(where: RedisUrl) -> dict[str, Any]:
    """The sentinels' options under the names of Celery's transport options; empty without sentinels."""
    if not where.master:
        return {}
    sentinel = {
        "username": where.sentinel_username or None,
        "password": where.sentinel_password or None,
        "socket_timeout": _SENTINEL_TIMEOUT_S,
        "socket_connect_timeout": _SENTINEL_TIMEOUT_S,
        # Otherwise redis-py tries a dead sentinel for seconds before it asks the next.
        "retry": Retry(NoBackoff(), 0),
    }
    return {
        "master_name": where.master,
        "sentinel_kwargs": sentinel | ({"ssl": True, **where.tls} if where.tls else {}),
    }


@dataclass(frozen=True)
class SentinelView:
    """One sentinel's answer about the master."""

    sentinel: str
    """Its `host:port`."""
    master: str = ""
    """The `host:port` of the master that it reports."""
    replicas: int = 0
    """The number of live replicas, which could take over."""
    quorum: int = 0
    """How many sentinels must agree that the master is down."""
    problem: str = ""
    """Why it gives no answer, or no usable master."""


def ask_sentinels(url: str) -> list[SentinelView]:
    """Ask each sentinel of the URL about its master; its view holds any error. Empty if the URL names none."""
    where = RedisUrl.parse(url)
    return [_ask(where, host, port) for host, port in where.hosts] if where.master else []


def _ask(where: RedisUrl, host: str, port: int) -> SentinelView:
    address = f"{host}:{port}"
    options = sentinel_options(where)["sentinel_kwargs"]
    with Redis(host, port, decode_responses=True, **options) as sentinel:
        try:
            master = sentinel.sentinel_masters().get(where.master)
            if master is None:
                return SentinelView(address, problem=f"knows no master '{where.master}'")
            replicas = [replica for replica in sentinel.sentinel_slaves(where.master) if not replica["is_sdown"]]
        except RedisError as error:
            return SentinelView(address, problem=str(error))
    down = master["is_sdown"] or master["is_odown"]
    return SentinelView(
        address,
        f"{master['ip']}:{master['port']}",
        len(replicas),
        master["quorum"],
        problem="takes the master for dead" if down else "",
    )

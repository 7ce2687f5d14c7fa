"""How Penstock connects to Redis."""

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry


def connect(url: str) -> "Redis":
    """A client that returns text, rides over a restart of the server (about 5 s), and never waits for ever."""
    return Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=30,
        socket_connect_timeout=5,
        health_check_interval=15,
        retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), retries=8),
        retry_on_error=[RedisConnectionError, RedisTimeoutError],
    )

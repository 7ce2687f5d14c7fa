"""The caller's Redis, cluster or sentinels, in place of the servers that tests start: `make acceptance`.

The module reads the variables at import, because tests run without the caller's settings.
"""

import os
from typing import Self

import pytest
from redis.cluster import RedisCluster

from pipeline.engine.connection import connect

URL = os.environ.get("PENSTOCK_TEST_REDIS_URL", "")
"""The URL of a server (`redis://`, `rediss://`) or of sentinels (`sentinel://`). The database must be empty."""
CLUSTER_URLS = [url.strip() for url in os.environ.get("PENSTOCK_TEST_REDIS_CLUSTER_URLS", "").split(",") if url.strip()]
"""Some masters of a cluster, which must be empty."""
MODE = os.environ.get("PENSTOCK_TEST_REDIS_MODE") or ("cluster" if CLUSTER_URLS else "single")
"""`single`, `sentinel` or `cluster`."""
NAMED = bool(URL or CLUSTER_URLS)
ON_CLUSTER = NAMED and MODE == "cluster"
"""The gateway's state is in the named cluster; Penstock's own Redis is `URL`, or a server of the tests."""


def check() -> None:
    """Raise `pytest.UsageError` if the variables contradict each other."""
    scheme = URL.partition("://")[0]
    wrong = {
        "single": scheme not in {"", "redis", "rediss"},
        "sentinel": not scheme.startswith("sentinel"),
        "cluster": not CLUSTER_URLS,
    }
    if MODE not in wrong:
        raise pytest.UsageError(f"PENSTOCK_TEST_REDIS_MODE={MODE}: single, sentinel or cluster")
    if wrong[MODE]:
        needed = (
            "PENSTOCK_TEST_REDIS_CLUSTER_URLS=redis://a:6379,redis://b:6379"
            if MODE == "cluster"
            else (
                f"PENSTOCK_TEST_REDIS_URL={'sentinel://a,b,c/0?master=mymaster' if MODE == 'sentinel' else 'redis://a:6379/9'}"
            )
        )
        raise pytest.UsageError(f"PENSTOCK_TEST_REDIS_MODE={MODE} needs {needed}")


def described() -> str:
    """Return a line about the servers of the tests, without passwords."""
    if not NAMED:
        return "Redis: servers of the tests' own"
    cluster = (
        f"gateways on a cluster ({', '.join(map(_without_password, CLUSTER_URLS))}), the rest on " if ON_CLUSTER else ""
    )
    return f"Redis: {cluster}{_without_password(URL) if URL else 'a server of the tests own'}"


class NamedServer:
    """The server that `URL` names. A context manager: the server must be empty at the start, and is at the end."""

    url = URL

    def start(self) -> None:
        """It runs."""

    def flush(self) -> None:
        """FLUSHDB."""
        with connect(URL) as client:
            client.flushdb()

    def kill(self) -> None:
        """Skips the test."""
        pytest.skip("the test ends its Redis, and this one belongs to the caller")

    fall_silent = lose_data = kill

    def __enter__(self) -> Self:
        with connect(URL, retries=0) as client:
            _expect_nothing(client.dbsize(), URL)
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()


class NamedCluster:
    """The cluster that `CLUSTER_URLS` name. A context manager: as `NamedServer`."""

    urls = CLUSTER_URLS

    def start(self) -> None:
        """It runs."""

    def flush(self) -> None:
        """FLUSHALL on each master."""
        with RedisCluster.from_url(CLUSTER_URLS[0]) as client:
            client.flushall(target_nodes=RedisCluster.PRIMARIES)

    kill = fall_silent = lose_data = NamedServer.kill

    def __enter__(self) -> Self:
        with RedisCluster.from_url(CLUSTER_URLS[0]) as client:
            _expect_nothing(client.dbsize(target_nodes=RedisCluster.PRIMARIES), CLUSTER_URLS[0])
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()


def _expect_nothing(keys: int, url: str) -> None:
    """Refuse a database with keys, because tests delete all of them."""
    if keys:
        pytest.exit(
            f"{_without_password(url)} has {keys} keys. Tests delete all of them: name an empty one.", returncode=4
        )


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"

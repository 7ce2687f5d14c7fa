"""Leases in Redis: a scope has a limited number, and each expires. All times are the server's."""

from functools import cache
from importlib.resources import files
from typing import cast

from redis import Redis


@cache
def script(name: str, package: str = "pipeline.engine") -> str:
    """Return the text of `lua/{name}.lua` in a package: a script that Redis runs as one atomic act."""
    return (files(package) / "lua" / f"{name}.lua").read_text()


def lease_key(scope: str) -> str:
    """The key of a scope's leases, a sorted set: member = holder, score = expiry in ms of the server's time."""
    return f"penstock:leases:{{{scope}}}"


class Leases:
    """The leases of one scope, `limit` at most."""

    def __init__(self, redis: "Redis", scope: str, limit: int = 1_000_000) -> None:
        self._redis = redis
        self._key = lease_key(scope)
        self._limit = limit

    def acquire(self, holder: str, ttl_s: float) -> bool:
        """Take a lease, or renew the one of `holder`; False if all are taken."""
        acquire = self._redis.register_script(script("lease_acquire"))
        return bool(acquire(keys=[self._key], args=[holder, int(ttl_s * 1000), self._limit]))

    def release(self, *holders: str) -> None:
        """Release leases; harmless if they already expired."""
        if holders:
            self._redis.zrem(self._key, *holders)

    def clear(self) -> None:
        """Release all leases of the scope."""
        self._redis.delete(self._key)

    def holders(self) -> set[str]:
        """The current holders of leases."""
        holders = self._redis.register_script(script("lease_holders"))(keys=[self._key])
        return set(cast("list[str]", holders))

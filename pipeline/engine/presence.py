"""Presence of workers and of the processes of their pools. Each has a lease; absent twice in a row, it counts as dead.

A worker's main process renews all its leases, because a process of its pool may be in a long call of C code.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis

from pipeline.engine.leases import Leases, lease_key

PRESENCE_KEYS = (lease_key("presence"), lease_key("presence:pools"))
"""The keys of the leases of workers, and of their pools' processes."""
_FACTS = "penstock:presence:facts:"
_MISSED_KEY = "penstock:presence:missed_since"
_SWEPT_KEY = "penstock:sweep:ended"
_REMEMBERED_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True)
class NoWorker:
    """No worker runs. `reason`: a sentence that tells people what to do."""

    reason: str = "No worker is running: start some with `penstock worker`, or `penstock up`."

    def __str__(self) -> str:
        return self.reason


class Presence:
    """The presence of the fleet's workers and their pools' processes, each by `hostname:pid:nonce`."""

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._workers = Leases(redis, "presence")
        self._pools = Leases(redis, "presence:pools")

    def renew(
        self, worker_id: str, ttl_s: float, pool: Iterable[str] = (), facts: Mapping[str, Any] | None = None
    ) -> None:
        """Count this worker and the processes of its pool as alive for the next `ttl_s` seconds.

        `facts`: what `facts()` reports about this worker; JSON.
        """
        self._workers.acquire(worker_id, ttl_s)
        if facts is not None:
            self._redis.set(_FACTS + worker_id, json.dumps({**facts, "ttl_s": ttl_s}), px=int(ttl_s * 1000))
        for process_id in pool:
            self._pools.acquire(process_id, ttl_s)

    def leave(self, *ids: str) -> None:
        """Remove the presence of these workers or processes at once."""
        self._workers.release(*ids)
        self._pools.release(*ids)
        if ids:
            self._redis.delete(*(_FACTS + worker for worker in ids))

    def alive(self) -> set[str]:
        """The live workers. A worker with a pool of threads is its only process."""
        return self._workers.holders()

    def facts(self) -> dict[str, dict[str, Any]]:
        """The reported facts by live worker, with their age as `seen_s`. Empty for a worker that reports none."""
        workers = sorted(self.alive())
        with self._redis.pipeline(transaction=False) as pipe:
            for worker in workers:
                pipe.get(_FACTS + worker)
                pipe.pttl(_FACTS + worker)
            replies = pipe.execute()
        return {worker: _facts(*replies[at * 2 : at * 2 + 2]) for at, worker in enumerate(workers)}

    def served(self) -> set[str] | None:
        """The queues that live workers consume, empty without workers; None (unknown) if a worker does not report its
        queues."""
        return served(facts.get("queues", ()) for facts in self.facts().values())

    def living(self, processes: Iterable[str]) -> set[str]:
        """The live processes among these."""
        wanted = set(processes)
        return wanted & (self.alive() | self._pools.holders()) if wanted else set()

    def missed_twice(self, processes: Iterable[str], within_s: float = 60, apart_s: float = 0) -> set[str]:
        """Return the processes among these that are absent now and were absent at the last call, in this process or
        another, if that was within `within_s` seconds.

        Twice, because Redis may just have been emptied, or the process started: by the next call a live one is present.
        Because calls may follow each other closely, `apart_s` seconds must lie between the first of the successive
        misses and now.
        """
        wanted = set(processes)
        if not wanted:
            self._redis.delete(_MISSED_KEY)
            return set()
        absent = wanted - self.living(wanted)
        seconds, micros = self._redis.time()
        now = seconds + micros / 1e6
        since = dict(cast("list[tuple[str, float]]", self._redis.zrange(_MISSED_KEY, 0, -1, withscores=True)))
        with self._redis.pipeline() as pipe:
            pipe.delete(_MISSED_KEY)
            if absent:
                pipe.zadd(_MISSED_KEY, {process: since.get(process, now) for process in absent})
                pipe.pexpire(_MISSED_KEY, int(within_s * 1000))
            pipe.execute()
        return {process for process in absent if process in since and now - since[process] >= apart_s}


def served(workers: Iterable[Collection[str]]) -> set[str] | None:
    """The union of the workers' queues, empty without workers; None (unknown) if a worker names none."""
    queues = list(workers)
    return {queue for names in queues for queue in names} if all(queues) else None


def _facts(stored: str | None, left_ms: int) -> dict[str, Any]:
    if stored is None:
        return {}
    facts = dict(json.loads(stored))
    return facts | {"seen_s": max(0.0, facts.pop("ttl_s") - left_ms / 1000)}


def sweep_ended(redis: "Redis") -> None:
    """Note that a sweep has ended now."""
    redis.set(_SWEPT_KEY, 1, px=_REMEMBERED_MS)


def last_sweep_s(redis: "Redis") -> float | None:
    """Seconds since the last sweep ended, by the server's clock; None if none is on record."""
    left_ms = redis.pttl(_SWEPT_KEY)
    return (_REMEMBERED_MS - left_ms) / 1000 if left_ms > 0 else None

"""Which workers are alive, and which of their processes. Each has a lease; one that is absent twice in a row is gone.

A worker's main process renews all of them: a process of its pool may be in a long call of C code.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis

from pipeline.engine.leases import Leases, lease_key

PRESENCE_KEYS = (lease_key("presence"), lease_key("presence:pools"))
"""Workers, and the processes of their pools."""
_FACTS = "penstock:presence:facts:"
_MISSED_KEY = "penstock:presence:missed_since"
_SWEPT_KEY = "penstock:sweep:ended"
_REMEMBERED_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True)
class NoWorker:
    """Nobody is there to work. `reason`: a sentence for people that says what to do."""

    reason: str = "No worker is running: start some with `penstock worker`, or `penstock up`."

    def __str__(self) -> str:
        return self.reason


class Presence:
    """The workers of the fleet, and the processes of their pools, each by `hostname:pid:nonce`."""

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._workers = Leases(redis, "presence")
        self._pools = Leases(redis, "presence:pools")

    def renew(
        self, worker_id: str, ttl_s: float, pool: Iterable[str] = (), facts: Mapping[str, Any] | None = None
    ) -> None:
        """Count this worker and the processes of its pool as alive for the next `ttl_s` seconds.

        `facts`: what it says of itself to whoever looks, as JSON.
        """
        self._workers.acquire(worker_id, ttl_s)
        if facts is not None:
            self._redis.set(_FACTS + worker_id, json.dumps({**facts, "ttl_s": ttl_s}), px=int(ttl_s * 1000))
        for process_id in pool:
            self._pools.acquire(process_id, ttl_s)

    def leave(self, *ids: str) -> None:
        """Count these workers or processes as gone."""
        self._workers.release(*ids)
        self._pools.release(*ids)
        if ids:
            self._redis.delete(*(_FACTS + one for one in ids))

    def alive(self) -> set[str]:
        """The workers. Where a pool is of threads, a worker is its only process."""
        return self._workers.holders()

    def facts(self) -> dict[str, dict[str, Any]]:
        """What the workers say of themselves, by worker, and `seen_s`: how long ago. Empty if one says nothing."""
        workers = sorted(self.alive())
        with self._redis.pipeline(transaction=False) as pipe:
            for worker in workers:
                pipe.get(_FACTS + worker)
                pipe.pttl(_FACTS + worker)
            found = pipe.execute()
        return {worker: _facts(*found[at * 2 : at * 2 + 2]) for at, worker in enumerate(workers)}

    def served(self) -> set[str] | None:
        """The queues that running workers consume; None if one of them does not name its queues."""
        return served(facts.get("queues", ()) for facts in self.facts().values())

    def living(self, processes: Iterable[str]) -> set[str]:
        """Those of these processes that live."""
        asked = set(processes)
        return asked & (self.alive() | self._pools.holders()) if asked else set()

    def missed_twice(self, processes: Iterable[str], within_s: float = 60, apart_s: float = 0) -> set[str]:
        """Those of `processes` that are absent now and were absent at the last call, if it was in the last `within_s`.

        Twice, since Redis may just have been emptied, or the process begun: by the next call a living one is there. A
        call may come late, and the next one soon after it: the first miss counts once `apart_s` have passed.
        """
        asked = set(processes)
        if not asked:
            self._redis.delete(_MISSED_KEY)
            return set()
        absent = asked - self.living(asked)
        seconds, micros = self._redis.time()
        now = seconds + micros / 1e6
        since = dict(cast("list[tuple[str, float]]", self._redis.zrange(_MISSED_KEY, 0, -1, withscores=True)))
        with self._redis.pipeline() as pipe:
            pipe.delete(_MISSED_KEY)
            if absent:
                pipe.zadd(_MISSED_KEY, {one: since.get(one, now) for one in absent})
                pipe.pexpire(_MISSED_KEY, int(within_s * 1000))
            pipe.execute()
        return {one for one in absent if one in since and now - since[one] >= apart_s}


def served(workers: Iterable[Collection[str]]) -> set[str] | None:
    """The union of the queues of each worker; None if one of them names none."""
    queues = list(workers)
    return {queue for some in queues for queue in some} if all(queues) else None


def _facts(said: str | None, left_ms: int) -> dict[str, Any]:
    if said is None:
        return {}
    facts = dict(json.loads(said))
    return facts | {"seen_s": max(0.0, facts.pop("ttl_s") - left_ms / 1000)}


def sweep_ended(redis: "Redis") -> None:
    """Note that a sweep has ended now."""
    redis.set(_SWEPT_KEY, 1, px=_REMEMBERED_MS)


def last_sweep_s(redis: "Redis") -> float | None:
    """How long ago the last sweep ended, by the server's clock; None if it is not known."""
    left_ms = redis.pttl(_SWEPT_KEY)
    return (_REMEMBERED_MS - left_ms) / 1000 if left_ms > 0 else None

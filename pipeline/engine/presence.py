"""Which workers are alive. A worker renews a lease; one that is absent twice in a row is gone."""

from collections.abc import Iterable

from redis import Redis

from pipeline.engine.leases import Leases, lease_key

PRESENCE_KEYS = (lease_key("presence"), lease_key("presence:pools"))
"""Workers, and the processes of their pools."""
_MISSED_KEY = "penstock:presence:missed"


class Presence:
    """The workers of the fleet, by `worker_id`."""

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._leases = Leases(redis, "presence")

    def renew(self, worker_id: str, ttl_s: float) -> None:
        """Count this worker as alive for the next `ttl_s` seconds."""
        self._leases.acquire(worker_id, ttl_s)

    def leave(self, worker_id: str) -> None:
        """Count this worker as gone."""
        self._leases.release(worker_id)

    def alive(self) -> set[str]:
        return self._leases.holders()

    def missed_twice(self, workers: Iterable[str], within_s: float = 60) -> set[str]:
        """Those of `workers` that are absent now and were absent at the last call, if that was in the last `within_s`.

        Twice, since Redis may just have been emptied: by the next call a living worker is back.
        """
        absent = set(workers) - self.alive()
        before = {str(name) for name in self._redis.smembers(_MISSED_KEY)}
        with self._redis.pipeline() as pipe:
            pipe.delete(_MISSED_KEY)
            if absent:
                pipe.sadd(_MISSED_KEY, *absent)
                pipe.pexpire(_MISSED_KEY, int(within_s * 1000))
            pipe.execute()
        return absent & before

"""Rate limits of callers: buckets in Redis that refill evenly."""

from dataclasses import dataclass

from redis import Redis

from pipeline.engine.leases import script


@dataclass(frozen=True)
class Rate:
    """At most `limit` units at once, and as many again in each `per_s` seconds."""

    limit: int
    per_s: float


class TooMany(Exception):  # an event, not a defect
    """The bucket holds too little. `wait_s`: seconds until it holds enough; None: it never does."""

    def __init__(self, wait_s: float | None) -> None:
        super().__init__("too many")
        self.wait_s = wait_s


def take(redis: "Redis", name: str, rate: Rate, units: int = 1) -> None:
    """Take `units` from the bucket `name`; negative units give back. Raises `TooMany`, having taken nothing, or
    `RedisError`."""
    act = redis.register_script(script("rate_take"))
    each_us = max(1, int(rate.per_s * 1_000_000 / rate.limit))
    wait_ms = int(act(keys=[f"penstock:rates:{{{name}}}"], args=[each_us, rate.limit, units]))
    if wait_ms:
        raise TooMany(None if wait_ms < 0 else wait_ms / 1000)

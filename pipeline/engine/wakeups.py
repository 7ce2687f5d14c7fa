"""One wake-up message a flow, for the row that is due first; the sweeper finds the others."""

from redis import Redis

from pipeline.engine.leases import script

MAX_DELAY_S = 60.0
"""Longer waits are left to the sweeper: messages with a far ETA fill a worker's memory."""


def plan_wakeup(redis: "Redis", flow: str, delay_s: float) -> bool:
    """Whether to send a wake-up for `flow` in `delay_s` seconds: none under way comes as early."""
    if delay_s > MAX_DELAY_S:
        return False
    plan = redis.register_script(script("wakeup"))
    return bool(plan(keys=[f"penstock:wakeup:{{{flow}}}"], args=[max(0, int(delay_s * 1000))]))

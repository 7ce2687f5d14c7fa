"""One wake-up message for each flow, for the row that is due first; the sweep finds the others."""

from redis import Redis

from pipeline.engine.leases import script

MAX_DELAY_S = 60.0
"""The longest wait of a wake-up. The sweep handles longer ones: messages with a far ETA fill a worker's memory."""


def plan_wakeup(redis: "Redis", flow: str, delay_s: float) -> bool:
    """Note a wake-up of `flow` in `delay_s` seconds. Return whether the caller must send a message for it: False if
    another comes as early, or the delay exceeds `MAX_DELAY_S`."""
    if delay_s > MAX_DELAY_S:
        return False
    plan = redis.register_script(script("wakeup"))
    return bool(plan(keys=[f"penstock:wakeup:{{{flow}}}"], args=[max(0, int(delay_s * 1000))]))

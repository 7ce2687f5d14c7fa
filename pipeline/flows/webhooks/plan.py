"""Decides when the flow has work: the fan-out of new events, and deliveries."""

from collections.abc import Collection

from sqlalchemy import select

from pipeline.engine.claims import anything
from pipeline.flows.webhooks.models import DELIVERIES, ENDPOINTS
from pipeline.flows.webhooks.settings import webhooks_of
from pipeline.flows.webhooks.work import delivery
from pipeline.flows.webhooks.work.delivery import WORK
from pipeline.flows.webhooks.work.fanout import BEHIND, fan_out
from pipeline.storage.context import Context

QUEUE = "control"
SEND = "send"
"""The flow's only scope: each message serves the endpoint whose turn it is."""

ANYTHING = anything([DELIVERIES], (DELIVERIES, WORK.claimable), (ENDPOINTS, BEHIND))


def due(context: Context) -> list[str]:
    """Create the deliveries of new events, then return `[SEND]` if an endpoint can take a delivery, else an empty
    list."""
    fan_out(context)
    return [SEND] if places(context) else []


def runnable(context: Context, _closed_queues: Collection[str]) -> list[str]:
    """Return `[SEND]` if an endpoint can take a delivery, else an empty list."""
    return [SEND] if places(context) else []


def places(context: Context) -> int:
    """Return how many deliveries may be under way at once, including those under way now; 0 if no endpoint can take one
    now."""
    rules = webhooks_of(context.settings)
    with context.db.read() as session:
        endpoints = delivery.ready(session)
    well, silent = sum(not row.failures for row in endpoints), sum(bool(row.silent) for row in endpoints)
    return min(rules.width, rules.per_endpoint * well + (len(endpoints) - well - silent) + bool(silent))


def next_wait_s(context: Context) -> float | None:
    """Return the seconds until the retry of a delivery or the end of an endpoint's pause; None without one. Ignores
    times that are past."""
    with context.db.read() as session:
        return delivery.next_due_s(session)


def has_subscribers(context: Context) -> bool:
    """Whether any endpoint is active."""
    with context.db.read() as session:
        return session.execute(select(ENDPOINTS.c.id).where(ENDPOINTS.c.active).limit(1)).first() is not None

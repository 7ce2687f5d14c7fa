"""What is due: events that no endpoint has seen, and deliveries."""

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
"""The one scope: whoever sends takes the endpoint whose turn it is."""

ANYTHING = anything([DELIVERIES], (DELIVERIES, WORK.claimable), (ENDPOINTS, BEHIND))


def due(context: Context) -> list[str]:
    """Fan out what is new; then whether anything can be sent."""
    fan_out(context)
    return [SEND] if places(context) else []


def runnable(context: Context, _shut: Collection[str]) -> list[str]:
    """Whether anything can be sent."""
    return [SEND] if places(context) else []


def places(context: Context) -> int:
    """How many deliveries should be under way now."""
    rules = webhooks_of(context.settings)
    with context.db.read() as session:
        found = delivery.ready(session)
    well, silent = sum(not row.failures for row in found), sum(bool(row.silent) for row in found)
    return min(rules.width, rules.per_endpoint * well + (len(found) - well - silent) + bool(silent))


def next_wait_s(context: Context) -> float | None:
    """Seconds until something that waits is due."""
    with context.db.read() as session:
        return delivery.next_due_s(session)


def hears(context: Context) -> bool:
    """Whether any endpoint waits for events."""
    with context.db.read() as session:
        return session.execute(select(ENDPOINTS.c.id).where(ENDPOINTS.c.active).limit(1)).first() is not None

"""Lists waiting deliveries and the latest failures."""

from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy import case, func, select

from pipeline.engine.backlog import Failure, Waiting
from pipeline.engine.backlog import waiting as counted
from pipeline.flows.webhooks.models import DELIVERIES, ENDPOINTS
from pipeline.flows.webhooks.plan import QUEUE
from pipeline.flows.webhooks.settings import webhooks_of
from pipeline.flows.webhooks.states import DeliveryStatus
from pipeline.flows.webhooks.work.delivery import WORK
from pipeline.storage.context import Context


def waiting(context: Context) -> Iterator[Waiting]:
    """Yield the counts of waiting deliveries by the state of their endpoints: disabled, failing, busy with the most
    deliveries at once, or able to take one."""
    most = webhooks_of(context.settings).per_endpoint
    under_way = select(DELIVERIES.c.endpoint_id).where(WORK.working).group_by(DELIVERIES.c.endpoint_id)
    with context.db.read() as session:
        busy = session.scalars(under_way.having(func.count() >= most)).all()
        c = ENDPOINTS.c
        endpoint_state = case((~c.active, "off"), (c.failures > 0, "failing"), (c.id.in_(busy), "busy"), else_="well")
        joined = DELIVERIES.join(ENDPOINTS, c.id == DELIVERIES.c.endpoint_id)
        by_state = list(counted(session, WORK, "webhook_deliveries", by=endpoint_state, within=joined))
    for state, deliveries in by_state:
        if state == "off":
            yield replace(deliveries, why="their endpoints are switched off", is_paused=True)
        elif state == "failing":
            yield replace(deliveries, why="the turn of their endpoints, which refused the latest delivery")
        elif state == "busy":
            why = f"their endpoints, which get {most} at a time (PENSTOCK_WEBHOOKS__PER_ENDPOINT)"
            yield replace(deliveries, why=why)
        else:
            yield replace(deliveries, queue=QUEUE)


def failures(context: Context, limit: int) -> list[Failure]:
    """Return at most `limit` failed deliveries, the last changed first."""
    c = DELIVERIES.c
    failed = select(c.id, c.type, c.error, c.updated_at).where(c.status == DeliveryStatus.FAILED)
    with context.db.read() as session:
        rows = session.execute(failed.order_by(c.updated_at.desc(), c.id.desc()).limit(limit)).all()
    return [
        Failure(
            "webhooks",
            "webhook_delivery",
            str(row.id),
            f"Delivery {row.id} of {row.type}",
            row.error or "unknown reason",
            row.updated_at,
        )
        for row in rows
    ]

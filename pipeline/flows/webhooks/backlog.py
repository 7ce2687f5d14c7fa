"""Deliveries that wait, and those that failed last."""

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
    """Deliveries, by what their endpoints do."""
    most = webhooks_of(context.settings).per_endpoint
    under_way = select(DELIVERIES.c.endpoint_id).where(WORK.working).group_by(DELIVERIES.c.endpoint_id)
    with context.db.read() as session:
        busy = session.scalars(under_way.having(func.count() >= most)).all()
        c = ENDPOINTS.c
        standing = case((~c.active, "off"), (c.failures > 0, "failing"), (c.id.in_(busy), "busy"), else_="well")
        joined = DELIVERIES.join(ENDPOINTS, c.id == DELIVERIES.c.endpoint_id)
        found = list(counted(session, WORK, "webhook_deliveries", by=standing, within=joined))
    for standing, one in found:
        if standing == "off":
            yield replace(one, why="their endpoints are switched off", is_paused=True)
        elif standing == "failing":
            yield replace(one, why="the turn of their endpoints, which did not take what was sent last")
        elif standing == "busy":
            yield replace(one, why=f"their endpoints, which get {most} at a time (PENSTOCK_WEBHOOKS__PER_ENDPOINT)")
        else:
            yield replace(one, queue=QUEUE)


def failures(context: Context, limit: int) -> list[Failure]:
    """The newest deliveries that were given up."""
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
            row.error or "it failed",
            row.updated_at,
        )
        for row in rows
    ]

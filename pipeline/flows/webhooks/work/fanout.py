"""From events to deliveries: each endpoint has a cursor, which moves in the transaction that makes the deliveries.

So nothing is lost and nothing is fanned out twice, whoever dies when. While very many deliveries wait for an endpoint,
its cursor stays: the events are in the outbox, whose retention is longer than any outage that is worth waiting for.
"""

import json
from functools import partial
from typing import Any

import structlog
from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine import outbox
from pipeline.engine.announced import wants
from pipeline.engine.claims import in_states
from pipeline.engine.transaction import Tx
from pipeline.flows.webhooks.models import DELIVERIES, ENDPOINTS
from pipeline.flows.webhooks.settings import webhooks_of
from pipeline.flows.webhooks.states import DELIVERY, DeliveryEvent
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PORTION = 500
MOST_PORTIONS = 20
"""For one endpoint in one go: others wait meanwhile."""

BEHIND = ENDPOINTS.c.active & (ENDPOINTS.c.cursor < select(outbox.COUNTER.c.seq).scalar_subquery())
"""An endpoint that has not seen every event."""


def lock(session: Session, endpoint_id: str) -> Any | None:
    """The endpoint's row, locked until the transaction ends; None if there is none."""
    return session.execute(select(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id).with_for_update()).one_or_none()


def fan_out(context: Context) -> int:
    """Make the deliveries of all events that there are; how many."""
    with context.db.read() as session:
        behind = session.scalars(select(ENDPOINTS.c.id).where(BEHIND).order_by(ENDPOINTS.c.id)).all()
    made = 0
    for endpoint_id in behind:
        for _ in range(MOST_PORTIONS):
            added, more = context.db.run(partial(_portion, endpoint_id=endpoint_id))
            made += added
            if not more:
                break
    return made


def _portion(tx: Tx, endpoint_id: str) -> tuple[int, bool]:
    """(deliveries that were made, whether there is more)."""
    row = lock(tx, endpoint_id)
    if row is None or not row.active:
        return 0, False
    waiting = select(DELIVERIES.c.id).where(
        DELIVERIES.c.endpoint_id == endpoint_id, in_states(DELIVERIES, DELIVERY.sources(DeliveryEvent.CLAIM))
    )
    room = webhooks_of(tx.settings).max_waiting
    counted = select(func.count()).select_from(waiting.limit(room).subquery())
    room -= tx.execute(counted).scalar_one()
    found = outbox.after(tx, row.cursor, min(PORTION, room)) if room > 0 else []
    if not found:
        return 0, False
    patterns = json.loads(row.types)
    added = [
        {"endpoint_id": endpoint_id, "seq": one.seq, "type": one.type, "created_at": tx.now, "updated_at": tx.now}
        for one in found
        if wants(patterns, one.type)
    ]
    if added:
        tx.connection().execute(insert(DELIVERIES), added)
    # Numbers have no gaps: those that are missing before the first were taken by retention.
    missed = found[0].seq - row.cursor - 1
    if missed:
        log.warning("webhook.events_missed", endpoint=endpoint_id, count=missed)
    moved = {"cursor": found[-1].seq, "missed": row.missed + missed}
    tx.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id).values(**moved))
    return len(added), len(found) == PORTION

"""Turns events into deliveries. The transaction that creates an endpoint's deliveries also moves its cursor.

So no crash loses an event or fans it out twice. While very many deliveries wait for an endpoint, its cursor stays, and
further events stay in the outbox.
"""

import json
from collections.abc import Mapping, Sequence
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
from pipeline.flows.webhooks.rules.callback import Callback
from pipeline.flows.webhooks.settings import webhooks_of
from pipeline.flows.webhooks.states import DELIVERY, DeliveryEvent
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PORTION = 500
MOST_PORTIONS = 20
"""Most portions for one endpoint in a row, because other endpoints wait."""

BEHIND = ENDPOINTS.c.active & (ENDPOINTS.c.cursor < select(outbox.COUNTER.c.seq).scalar_subquery())
"""Selects active endpoints whose cursor is behind the latest event."""


def lock(session: Session, endpoint_id: str) -> Any | None:
    """Lock and return the endpoint's row until the transaction ends; None if it does not exist."""
    return session.execute(select(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id).with_for_update()).one_or_none()


def report(tx: Tx, endpoint: Any, document_id: str, status: str, facts: Mapping[str, Any]) -> Any:
    """Tell a callback that a document has this status; return the endpoint's row then. Lock it before."""
    after, messages = Callback.parse(endpoint.callback).ended(document_id, status, facts)
    if not messages:
        return endpoint
    send(tx, endpoint.id, messages)
    changed = update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint.id).values(callback=after.text)
    return tx.execute(changed.returning(*ENDPOINTS.c)).one()


def send(tx: Tx, endpoint_id: str, messages: Sequence[str]) -> None:
    """Create the deliveries of a callback's messages."""
    rows = [
        {
            "endpoint_id": endpoint_id,
            "type": f"callback.{json.loads(message)['progress']['kind']}",
            "content": message,
            "created_at": tx.now,
            "updated_at": tx.now,
        }
        for message in messages
    ]
    tx.connection().execute(insert(DELIVERIES), rows)


def fan_out(context: Context) -> int:
    """Create the deliveries of new events for the active endpoints that want them; return their number.

    Up to `max_waiting` deliveries wait for one endpoint; further events stay in the outbox.
    """
    with context.db.read() as session:
        behind = session.scalars(select(ENDPOINTS.c.id).where(BEHIND).order_by(ENDPOINTS.c.id)).all()
    total = 0
    for endpoint_id in behind:
        for _ in range(MOST_PORTIONS):
            added, more = context.db.run(partial(_portion, endpoint_id=endpoint_id))
            total += added
            if not more:
                break
    return total


def _portion(tx: Tx, endpoint_id: str) -> tuple[int, bool]:
    """Create a portion of an endpoint's deliveries; return (their number, whether more events may follow: False without
    room for a full portion). An inactive endpoint gets none."""
    row = lock(tx, endpoint_id)
    if row is None or not row.active:
        return 0, False
    waiting = select(DELIVERIES.c.id).where(
        DELIVERIES.c.endpoint_id == endpoint_id, in_states(DELIVERIES, DELIVERY.sources(DeliveryEvent.CLAIM))
    )
    room = webhooks_of(tx.settings).max_waiting
    counted = select(func.count()).select_from(waiting.limit(room).subquery())
    room -= tx.execute(counted).scalar_one()
    events = outbox.after(tx, row.cursor, min(PORTION, room)) if room > 0 else []
    if not events:
        return 0, False
    if row.callback:
        for event in events:
            row = report(tx, row, event.scope_id, event.status, event.data) if event.kind == "document" else row
        added = []
    else:
        patterns = json.loads(row.types)
        added = [
            {
                "endpoint_id": endpoint_id,
                "seq": event.seq,
                "type": event.type,
                "created_at": tx.now,
                "updated_at": tx.now,
            }
            for event in events
            if wants(patterns, event.type)
        ]
    if added:
        tx.connection().execute(insert(DELIVERIES), added)
    # Numbers have no gaps: retention deleted the events that are missing before the first.
    missed = events[0].seq - row.cursor - 1
    if missed:
        log.warning("webhook.events_missed", endpoint=endpoint_id, count=missed)
    moved = {"cursor": events[-1].seq, "missed": row.missed + missed}
    tx.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id).values(**moved))
    return len(added), len(events) == PORTION

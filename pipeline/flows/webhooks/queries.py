"""Queries and views of webhooks. No view contains a secret."""

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import func, select

from pipeline.engine.errors import UserError
from pipeline.engine.views import view_of
from pipeline.engine.wire import VIEW
from pipeline.flows.webhooks.models import ATTEMPTS, DELIVERIES, ENDPOINTS
from pipeline.flows.webhooks.states import DeliveryStatus
from pipeline.storage.context import Context


class UnknownEndpoint(UserError):
    """No endpoint has this id."""

    def __init__(self, endpoint_id: str) -> None:
        super().__init__(f"there is no webhook endpoint {endpoint_id}; see `penstock webhooks list`", code="not_found")


class UnknownDelivery(UserError):
    """No delivery has this id."""

    def __init__(self, delivery_id: int) -> None:
        super().__init__(
            f"there is no webhook delivery {delivery_id}; see `penstock webhooks deliveries`", code="not_found"
        )


@dataclass(frozen=True)
class EndpointView:
    """An endpoint. Only its creation shows its secret."""

    __pydantic_config__ = VIEW
    id: str
    url: str
    active: bool
    disabled_because: str | None
    failures: int
    """Failed attempts since the latest success."""
    failing_since: datetime | None
    paused_until: datetime | None
    """Time of the earliest next delivery, after failures."""
    missed: int
    """Events that retention deleted before their delivery."""
    created_at: datetime
    types: list[str] = field(default_factory=list)
    """Types of events, or patterns; empty: every event."""
    description: str = ""


@dataclass(frozen=True)
class DeliveryView:
    """An event on its way to an endpoint."""

    __pydantic_config__ = VIEW
    id: int
    endpoint_id: str
    seq: int | None
    """The event's number; null: a test."""
    type: str
    status: DeliveryStatus
    attempts: int
    response_status: int | None
    """HTTP status of the latest attempt; null: no answer."""
    error: str | None
    next_run_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True)
class AttemptView:
    """One attempt at a delivery."""

    __pydantic_config__ = VIEW
    id: int
    response_status: int | None
    preview: str
    """The beginning of the answer."""
    error: str | None
    latency_ms: int
    created_at: datetime


def endpoint(context: Context, endpoint_id: str) -> EndpointView:
    """Return an endpoint. Raises `UnknownEndpoint`."""
    with context.db.read() as session:
        row = session.execute(select(ENDPOINTS).where(ENDPOINTS.c.id == endpoint_id)).one_or_none()
    if row is None:
        raise UnknownEndpoint(endpoint_id)
    return view_of(EndpointView, row)


def endpoints(context: Context) -> list[EndpointView]:
    """Return all endpoints in the order of their creation, without callbacks of requests."""
    with context.db.read() as session:
        webhooks = select(ENDPOINTS).where(ENDPOINTS.c.callback.is_(None))
        rows = session.execute(webhooks.order_by(ENDPOINTS.c.created_at, ENDPOINTS.c.id)).all()
    return [view_of(EndpointView, row) for row in rows]


def deliveries(
    context: Context,
    endpoint_id: str | None = None,
    status: DeliveryStatus | None = None,
    *,
    before: int | None = None,
    limit: int = 50,
) -> list[DeliveryView]:
    """Return deliveries, the newest first. `before`: only deliveries with a lower id."""
    query = select(DELIVERIES).order_by(DELIVERIES.c.id.desc()).limit(limit)
    if endpoint_id is not None:
        query = query.where(DELIVERIES.c.endpoint_id == endpoint_id)
    if status is not None:
        query = query.where(DELIVERIES.c.status == status)
    if before is not None:
        query = query.where(DELIVERIES.c.id < before)
    with context.db.read() as session:
        return [view_of(DeliveryView, row) for row in session.execute(query)]


def delivery(context: Context, delivery_id: int) -> DeliveryView:
    """Return a delivery. Raises `UnknownDelivery`."""
    with context.db.read() as session:
        row = session.execute(select(DELIVERIES).where(DELIVERIES.c.id == delivery_id)).one_or_none()
    if row is None:
        raise UnknownDelivery(delivery_id)
    return view_of(DeliveryView, row)


def attempts(context: Context, delivery_id: int) -> list[AttemptView]:
    """Return all attempts at a delivery, the oldest first; empty for an unknown delivery."""
    query = select(ATTEMPTS).where(ATTEMPTS.c.delivery_id == delivery_id).order_by(ATTEMPTS.c.id)
    with context.db.read() as session:
        return [view_of(AttemptView, row) for row in session.execute(query)]


def delivery_counts(context: Context, endpoint_id: str | None = None) -> dict[DeliveryStatus, int]:
    """Count deliveries by state, to all endpoints or one; states without deliveries have 0."""
    query = select(DELIVERIES.c.status, func.count()).group_by(DELIVERIES.c.status)
    if endpoint_id is not None:
        query = query.where(DELIVERIES.c.endpoint_id == endpoint_id)
    with context.db.read() as session:
        counts = {DeliveryStatus(status): number for status, number in session.execute(query)}
    return {status: counts.get(status, 0) for status in DeliveryStatus}

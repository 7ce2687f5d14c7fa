"""Tables of webhooks: endpoints, deliveries, and attempts."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.claims import ClaimColumns, claimable_index, claims_index, waits_index
from pipeline.engine.tables import Base, RowId, UtcDateTime, table_of
from pipeline.flows.webhooks.states import DELIVERY, DeliveryEvent, DeliveryStatus

MAX_URL, MAX_DESCRIPTION, MAX_PREVIEW, MAX_ERROR = 2000, 200, 300, 500


class Endpoint(Base):
    """The address that receives events. Its row is the lock of its deliveries."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(String(20), primary_key=True)
    url: Mapped[str] = mapped_column(String(MAX_URL))
    secret: Mapped[str] = mapped_column(String(100))
    """`whsec_…`, which signs deliveries. Penstock shows it once, at its creation; no view and no log contains it."""
    former_secret: Mapped[str | None] = mapped_column(String(100))
    """The previous secret, which also signs until `former_until`, so that receivers can switch."""
    former_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    types: Mapped[str] = mapped_column(Text, default="[]")
    """JSON list of patterns; empty: every event."""
    description: Mapped[str] = mapped_column(String(MAX_DESCRIPTION), default="")
    active: Mapped[bool] = mapped_column(default=True)
    disabled_because: Mapped[str | None] = mapped_column(String(200))
    cursor: Mapped[int] = mapped_column(BigInteger)
    """The latest event fanned out to it, or skipped."""
    missed: Mapped[int] = mapped_column(BigInteger, default=0)
    """Events that retention deleted before their fan-out."""
    failures: Mapped[int] = mapped_column(default=0)
    """Failed attempts since the latest success."""
    failing_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    paused_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time of the earliest next delivery; None: at once."""
    tried_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time of the latest claim of a delivery: the endpoint with the earliest time is next."""
    callback: Mapped[str | None] = mapped_column(Text)
    """JSON of a `rules.callback.Callback`, for an endpoint that gets the messages about one task; None: events."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Delivery(ClaimColumns, Base):
    """One event on its way to one endpoint."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        # At most one delivery of an event to an endpoint.
        UniqueConstraint("endpoint_id", "seq"),
        Index("ix_webhook_deliveries_created_at", "created_at", "id"),
        Index("ix_webhook_deliveries_status", "status"),
        claimable_index("webhook_deliveries", "endpoint_id", "id", states=DELIVERY.sources(DeliveryEvent.CLAIM)),
        claims_index("webhook_deliveries"),
        waits_index("webhook_deliveries"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("webhook_endpoints.id", ondelete="CASCADE"))
    seq: Mapped[int | None] = mapped_column(BigInteger)
    """The event's number; None: a test, or a callback's message."""
    content: Mapped[str | None] = mapped_column(Text)
    """A callback's message, as JSON; or an event's body, from the first attempt until one succeeds."""
    type: Mapped[str] = mapped_column(String(80))
    status: Mapped[str] = mapped_column(String(20), default=DeliveryStatus.PENDING.value)
    error: Mapped[str | None] = mapped_column(Text)
    response_status: Mapped[int | None]
    """HTTP status of the latest attempt; None: no answer."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class DeliveryAttempt(Base):
    """One attempt at a delivery, and the endpoint's answer."""

    __tablename__ = "webhook_attempts"
    __table_args__ = (Index("ix_webhook_attempts_delivery_id", "delivery_id"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    delivery_id: Mapped[int] = mapped_column(ForeignKey("webhook_deliveries.id", ondelete="CASCADE"))
    response_status: Mapped[int | None]
    preview: Mapped[str] = mapped_column(String(MAX_PREVIEW), default="")
    """The beginning of the answer."""
    error: Mapped[str | None] = mapped_column(String(MAX_ERROR))
    latency_ms: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


ENDPOINTS = table_of(Endpoint)
DELIVERIES = table_of(Delivery)
ATTEMPTS = table_of(DeliveryAttempt)

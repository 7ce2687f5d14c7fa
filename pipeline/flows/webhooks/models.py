"""Tables of webhooks: endpoints, deliveries to them, and every attempt."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.claims import ClaimColumns, claimable_index, claims_index, waits_index
from pipeline.engine.tables import Base, RowId, UtcDateTime, table_of
from pipeline.flows.webhooks.states import DELIVERY, DeliveryEvent, DeliveryStatus

MAX_URL, MAX_DESCRIPTION, MAX_PREVIEW, MAX_ERROR = 2000, 200, 300, 500


class Endpoint(Base):
    """Where events are sent to. Its row is the lock of its deliveries."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(String(20), primary_key=True)
    url: Mapped[str] = mapped_column(String(MAX_URL))
    secret: Mapped[str] = mapped_column(String(100))
    """`whsec_…`. Signs; it is shown once, when the endpoint is made, and is in no view and no log."""
    former_secret: Mapped[str | None] = mapped_column(String(100))
    """The secret before it; signs as well, so that receivers can change over."""
    former_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    types: Mapped[str] = mapped_column(Text, default="[]")
    """JSON list of patterns; empty: every event."""
    description: Mapped[str] = mapped_column(String(MAX_DESCRIPTION), default="")
    active: Mapped[bool] = mapped_column(default=True)
    disabled_because: Mapped[str | None] = mapped_column(String(200))
    cursor: Mapped[int] = mapped_column(BigInteger)
    """The last event that was looked at for it."""
    missed: Mapped[int] = mapped_column(BigInteger, default=0)
    """Events that retention took before they were looked at."""
    failures: Mapped[int] = mapped_column(default=0)
    """Attempts that failed since one succeeded."""
    failing_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    paused_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Nothing is sent to it before; None: at once."""
    tried_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When something was last sent to it: whose turn is longest ago is next."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Delivery(ClaimColumns, Base):
    """One event on its way to one endpoint. Its words are the event's: there is no copy of them."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        # Nothing is fanned out twice.
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
    """The event; None: a test."""
    type: Mapped[str] = mapped_column(String(80))
    status: Mapped[str] = mapped_column(String(20), default=DeliveryStatus.PENDING.value)
    error: Mapped[str | None] = mapped_column(Text)
    response_status: Mapped[int | None]
    """Of the last attempt; None: there was no answer."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class DeliveryAttempt(Base):
    """One attempt at a delivery, and what the endpoint answered."""

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

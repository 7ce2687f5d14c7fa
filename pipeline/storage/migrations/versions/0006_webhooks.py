"""Webhooks: endpoints, deliveries, attempts."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from pipeline.engine.tables import UtcDateTime

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _columns(kind: sa.types.TypeEngine[Any], *names: str) -> list[sa.Column[Any]]:
    """Columns of one type; those whose name ends with `?` may be NULL."""
    return [sa.Column(name.rstrip("?"), kind, nullable=name.endswith("?")) for name in names]


def upgrade() -> None:
    _string, time = sa.String, UtcDateTime()
    op.create_table(
        "webhook_endpoints",
        *_columns(_string(20), "id"),
        *_columns(_string(2000), "url"),
        *_columns(_string(100), "secret"),
        *_columns(sa.Text(), "types"),
        *_columns(_string(200), "description", "disabled_because?"),
        *_columns(sa.Boolean(), "active"),
        *_columns(sa.BigInteger(), "cursor", "missed"),
        *_columns(sa.Integer(), "failures"),
        *_columns(time, "failing_since?", "paused_until?", "tried_at?", "created_at", "updated_at"),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoints"),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", _Id, primary_key=True),
        sa.Column(
            "endpoint_id",
            sa.String(20),
            sa.ForeignKey("webhook_endpoints.id", ondelete="CASCADE", name="fk_webhook_deliveries_endpoint_id"),
            nullable=False,
        ),
        *_columns(sa.BigInteger(), "seq?"),
        *_columns(_string(80), "type"),
        *_columns(_string(20), "status"),
        *_columns(sa.Text(), "error?"),
        *_columns(sa.Integer(), "response_status?", "attempts"),
        *_columns(time, "created_at", "updated_at", "finished_at?", "lease_until?", "next_run_at?"),
        *_columns(_string(200), "worker_id?"),
        *_columns(_string(32), "claim_id?"),
        *_columns(_string(64), "request_id?"),
        sa.UniqueConstraint("endpoint_id", "seq", name="uq_webhook_deliveries_endpoint_id_seq"),
    )
    op.create_index("ix_webhook_deliveries_created_at", "webhook_deliveries", ["created_at", "id"])
    op.create_index("ix_webhook_deliveries_status", "webhook_deliveries", ["status"])
    for name, condition, columns in (
        ("claimable", "status IN ('pending')", ["endpoint_id", "id"]),
        ("claimed", "claim_id IS NOT NULL", ["worker_id", "lease_until"]),
        ("next_run_at", "next_run_at IS NOT NULL", ["next_run_at"]),
    ):
        few: dict[str, Any] = dict.fromkeys(("sqlite_where", "postgresql_where"), sa.text(condition))
        op.create_index(f"ix_webhook_deliveries_{name}", "webhook_deliveries", columns, **few)
    op.create_table(
        "webhook_attempts",
        sa.Column("id", _Id, primary_key=True),
        sa.Column(
            "delivery_id",
            _Id,
            sa.ForeignKey("webhook_deliveries.id", ondelete="CASCADE", name="fk_webhook_attempts_delivery_id"),
            nullable=False,
        ),
        *_columns(sa.Integer(), "response_status?", "latency_ms"),
        *_columns(_string(300), "preview"),
        *_columns(_string(500), "error?"),
        *_columns(time, "created_at"),
    )
    op.create_index("ix_webhook_attempts_delivery_id", "webhook_attempts", ["delivery_id"])


def downgrade() -> None:
    for name in ("webhook_attempts", "webhook_deliveries", "webhook_endpoints"):
        op.drop_table(name)

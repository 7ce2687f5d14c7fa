"""Webhooks: endpoints, deliveries, attempts."""

import sqlalchemy as sa
from alembic import op

from pipeline.storage.migrations.columns import bigint, boolean, claim_indexes, ident, integer, moment, string, text

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "webhook_endpoints",
        *string(20, "id"),
        *string(2000, "url"),
        *string(100, "secret"),
        *text("types"),
        *string(200, "description", "disabled_because?"),
        *boolean("active"),
        *bigint("cursor", "missed"),
        *integer("failures"),
        *moment("failing_since?", "paused_until?", "tried_at?", "created_at", "updated_at"),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoints"),
    )
    op.create_table(
        "webhook_deliveries",
        *ident("id", primary_key=True),
        *string(20, "endpoint_id"),
        *bigint("seq?"),
        *string(80, "type"),
        *string(20, "status"),
        *text("error?"),
        *integer("response_status?", "attempts"),
        *moment("created_at", "updated_at", "finished_at?", "lease_until?", "next_run_at?"),
        *string(200, "worker_id?"),
        *string(32, "claim_id?"),
        *string(64, "request_id?"),
        sa.UniqueConstraint("endpoint_id", "seq", name="uq_webhook_deliveries_endpoint_id_seq"),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["webhook_endpoints.id"],
            name="fk_webhook_deliveries_endpoint_id",
            ondelete="CASCADE",
        ),
        sa.Index("ix_webhook_deliveries_created_at", "created_at", "id"),
        sa.Index("ix_webhook_deliveries_status", "status"),
        *claim_indexes("webhook_deliveries", "status IN ('pending')", "endpoint_id", "id"),
    )
    op.create_table(
        "webhook_attempts",
        *ident("id", primary_key=True),
        *ident("delivery_id"),
        *integer("response_status?", "latency_ms"),
        *string(300, "preview"),
        *string(500, "error?"),
        *moment("created_at"),
        sa.ForeignKeyConstraint(
            ["delivery_id"],
            ["webhook_deliveries.id"],
            name="fk_webhook_attempts_delivery_id",
            ondelete="CASCADE",
        ),
        sa.Index("ix_webhook_attempts_delivery_id", "delivery_id"),
    )


def downgrade() -> None:
    for name in ("webhook_attempts", "webhook_deliveries", "webhook_endpoints"):
        op.drop_table(name)

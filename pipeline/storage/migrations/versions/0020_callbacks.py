"""Callbacks of docling-serve's clients are webhooks with a task and messages of their own."""

from pipeline.storage.migrations.columns import add_columns, drop_columns, text

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    add_columns("webhook_endpoints", *text("callback?"))
    add_columns("webhook_deliveries", *text("content?"))


def downgrade() -> None:
    drop_columns("webhook_deliveries", "content")
    drop_columns("webhook_endpoints", "callback")

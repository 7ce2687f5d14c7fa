"""The former secret of a webhook endpoint, which signs for a day beside the new one."""

from pipeline.storage.migrations.columns import add_columns, drop_columns, moment, string

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    add_columns("webhook_endpoints", *string(100, "former_secret?"), *moment("former_until?"))


def downgrade() -> None:
    drop_columns("webhook_endpoints", "former_until", "former_secret")

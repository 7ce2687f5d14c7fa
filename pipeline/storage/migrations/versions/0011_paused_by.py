"""Who paused a document, and when."""

from pipeline.storage.migrations.columns import add_columns, drop_columns, moment, string

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    add_columns("documents", *string(200, "paused_by", server_default=""), *moment("paused_at?"))


def downgrade() -> None:
    drop_columns("documents", "paused_at", "paused_by")

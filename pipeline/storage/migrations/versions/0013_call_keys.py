"""A key for each call, made before it is sent: a transaction that is repeated writes it down once."""

from alembic import op

from pipeline.storage.migrations.columns import add_columns, drop_columns, string

revision = "0013"
down_revision = "0012"

TABLES = ("ai_calls", "page_attempts")


def upgrade() -> None:
    for table in TABLES:
        add_columns(table, *string(32, "call_id?"))
        op.create_index(f"ix_{table}_call_id", table, ["call_id"], unique=True)


def downgrade() -> None:
    for table in TABLES:
        op.drop_index(f"ix_{table}_call_id", table)
        drop_columns(table, "call_id")

"""A key for each call, made before it is sent: a transaction that is repeated writes it down once."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
TABLES = ("ai_calls", "page_attempts")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("call_id", sa.String(32), nullable=True))
        op.create_index(f"ix_{table}_call_id", table, ["call_id"], unique=True)


def downgrade() -> None:
    for table in TABLES:
        op.drop_index(f"ix_{table}_call_id", table)
        op.drop_column(table, "call_id")

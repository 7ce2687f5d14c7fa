"""Live settings, and what calls cost"""

import sqlalchemy as sa
from alembic import op

from pipeline.engine import tables

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "system_settings",
        sa.Column("key", sa.String(length=120), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("updated_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_system_settings")),
    )

    with op.batch_alter_table("ai_calls") as batch_op:
        batch_op.add_column(sa.Column("cost", sa.Double(), nullable=False, server_default="0"))
        batch_op.create_index("ix_ai_calls_provider_created_at", ["provider", "created_at"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("ai_calls") as batch_op:
        batch_op.drop_index("ix_ai_calls_provider_created_at")
        batch_op.drop_column("cost")
    op.drop_table("system_settings")

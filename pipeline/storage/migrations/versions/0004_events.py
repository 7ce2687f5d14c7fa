"""Events of rows that people follow, and the counter of their numbers."""

import sqlalchemy as sa
from alembic import op

from pipeline.engine.tables import UtcDateTime

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        *(
            sa.Column(name, sa.String(length), nullable=False)
            for name, length in (("flow", 40), ("type", 80), ("kind", 40), ("scope_id", 64), ("status", 40))
        ),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_events"),
    )
    op.create_index("ix_events_created_at", "events", ["created_at"])
    op.create_index("ix_events_scope_id_seq", "events", ["scope_id", "seq"])
    op.create_table(
        "event_counter",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_event_counter"),
    )


def downgrade() -> None:
    op.drop_table("event_counter")
    op.drop_table("events")

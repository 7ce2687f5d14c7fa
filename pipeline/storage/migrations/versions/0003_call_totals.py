"""Totals of calls to AI services, which outlive the calls on record"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ai_call_totals",
        sa.Column("flow", sa.String(40), primary_key=True),
        sa.Column("provider", sa.String(60), primary_key=True),
        sa.Column("capability", sa.String(20), primary_key=True),
        sa.Column("status", sa.String(20), primary_key=True),
        sa.Column("le_ms", sa.Integer(), primary_key=True, autoincrement=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("calls", "latency_ms", "input_tokens", "output_tokens", "cost_nano")
        ),
    )
    op.create_table(
        "ai_call_cursor",
        sa.Column("only", sa.Integer(), primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("counted_to", "next_to", "horizon")),
    )


def downgrade() -> None:
    op.drop_table("ai_call_cursor")
    op.drop_table("ai_call_totals")

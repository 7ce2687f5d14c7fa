"""Totals of calls to AI services, which outlive the calls on record"""

from alembic import op

from pipeline.storage.migrations.columns import bigint, integer, string

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "ai_call_totals",
        *string(40, "flow", primary_key=True),
        *string(60, "provider", primary_key=True),
        *string(20, "capability", "status", primary_key=True),
        *integer("le_ms", primary_key=True, autoincrement=False),
        *bigint("calls", "latency_ms", "input_tokens", "output_tokens", "cost_nano"),
    )
    op.create_table(
        "ai_call_cursor",
        *integer("only", primary_key=True, autoincrement=False),
        *bigint("counted_to", "next_to", "horizon"),
    )


def downgrade() -> None:
    op.drop_table("ai_call_cursor")
    op.drop_table("ai_call_totals")

"""Doubtful pages go to another provider, within a budget."""

import sqlalchemy as sa
from alembic import op

from pipeline.storage.migrations.columns import (
    add_columns,
    boolean,
    double,
    drop_columns,
    ident,
    integer,
    moment,
    string,
    text,
)

revision = "0018"
down_revision = "0017"

COLUMNS = (
    *ident("page_id"),
    *string(32, "document_id"),
    *integer("page"),
    *string(60, "provider"),
    *string(10, "state"),
    *text("reason", "outcome"),
    *boolean("has_text"),
    *string(60, "former_provider"),
    *string(120, "former_model"),
    *double("reserved", "cost"),
    *moment("created_at", "ended_at?"),
)


def upgrade() -> None:
    add_columns(
        "documents",
        *string(60, "escalate", server_default=""),
        *string(20, "budget", server_default=""),
        *double("budget_cost?"),
        *integer("budget_pages?"),
        *integer("escalated_pages", "unpaid_pages", server_default="0"),
        *double("escalated_cost", server_default="0"),
    )
    op.create_table(
        "page_escalations",
        *COLUMNS,
        sa.PrimaryKeyConstraint("page_id", name="pk_page_escalations"),
        sa.ForeignKeyConstraint(["page_id"], ["pages.id"], name="fk_page_escalations_page_id", ondelete="CASCADE"),
    )
    op.create_index("ix_page_escalations_document_state", "page_escalations", ["document_id", "state", "page"])
    op.create_index("ix_page_escalations_state", "page_escalations", ["state"])


def downgrade() -> None:
    op.drop_table("page_escalations")
    drop_columns(
        "documents",
        "escalated_cost",
        "unpaid_pages",
        "escalated_pages",
        "budget_pages",
        "budget_cost",
        "budget",
        "escalate",
    )

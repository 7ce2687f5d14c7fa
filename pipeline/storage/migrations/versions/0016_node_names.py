"""Names of nodes, each with the token that it belongs to."""

import sqlalchemy as sa
from alembic import op

from pipeline.storage.migrations.columns import moment, string

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "node_names",
        *string(64, "node_id"),
        *string(16, "token_id"),
        *moment("since"),
        sa.ForeignKeyConstraint(["token_id"], ["node_tokens.id"], name="fk_node_names_token_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("node_id", name="pk_node_names"),
        sa.Index("ix_node_names_token_id", "token_id"),
    )


def downgrade() -> None:
    op.drop_table("node_names")

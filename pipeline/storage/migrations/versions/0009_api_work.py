"""Who asked the API for what, so that spending has a quota for each key."""

import sqlalchemy as sa
from alembic import op

from pipeline.engine.tables import UtcDateTime

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_work",
        sa.Column("flow", sa.String(40), nullable=False),
        sa.Column("item_id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("flow", "item_id", name="pk_api_work"),
    )
    op.create_index("ix_api_work_owner_since", "api_work", ["owner", "since"])


def downgrade() -> None:
    op.drop_table("api_work")

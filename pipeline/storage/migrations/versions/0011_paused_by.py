"""Who paused a document, and when."""

import sqlalchemy as sa
from alembic import op

from pipeline.engine.tables import UtcDateTime

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("documents", sa.Column("paused_by", sa.String(200), nullable=False, server_default=""))
    op.add_column("documents", sa.Column("paused_at", UtcDateTime(), nullable=True))


def downgrade() -> None:
    op.drop_column("documents", "paused_at")
    op.drop_column("documents", "paused_by")

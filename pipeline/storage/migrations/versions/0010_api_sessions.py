"""Sessions of the console."""

import sqlalchemy as sa
from alembic import op

from pipeline.engine.tables import UtcDateTime

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_sessions",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("last_used_at", UtcDateTime()),
        sa.Column("expires_at", UtcDateTime()),
        sa.Column("revoked_at", UtcDateTime()),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_api_sessions_key_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_api_sessions"),
        sa.UniqueConstraint("secret_hash", name="uq_api_sessions_secret_hash"),
    )


def downgrade() -> None:
    op.drop_table("api_sessions")

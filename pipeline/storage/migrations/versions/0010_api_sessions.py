"""Sessions of the console."""

import sqlalchemy as sa
from alembic import op

from pipeline.storage.migrations.columns import moment, string

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "api_sessions",
        *string(16, "id"),
        *string(100, "name"),
        *string(64, "secret_hash"),
        *moment("created_at", "last_used_at?", "expires_at?", "revoked_at?"),
        *string(16, "key_id"),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_api_sessions_key_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_api_sessions"),
        sa.UniqueConstraint("secret_hash", name="uq_api_sessions_secret_hash"),
    )


def downgrade() -> None:
    op.drop_table("api_sessions")

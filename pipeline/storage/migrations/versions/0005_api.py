"""Keys of the REST API, and answers to requests that may be sent twice"""

import sqlalchemy as sa
from alembic import op

from pipeline.engine import tables

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("scope", sa.String(10), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(), nullable=False),
        sa.Column("last_used_at", tables.UtcDateTime(), nullable=True),
        sa.Column("expires_at", tables.UtcDateTime(), nullable=True),
        sa.Column("revoked_at", tables.UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("secret_hash", name="uq_api_keys_secret_hash"),
    )
    op.create_table(
        "idempotent_requests",
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("claim_id", sa.String(32), nullable=True),
        sa.Column("running_until", tables.UtcDateTime(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(), nullable=False),
        sa.Column("expires_at", tables.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_idempotent_requests"),
    )
    op.create_index("ix_idempotent_requests_expires_at", "idempotent_requests", ["expires_at"])


def downgrade() -> None:
    op.drop_table("idempotent_requests")
    op.drop_table("api_keys")

"""Keys of the REST API, and answers to requests that may be sent twice"""

import sqlalchemy as sa

from pipeline.storage.migrations.columns import Tables, blob, integer, moment, string, text

revision = "0005"
down_revision = "0004"

tables = Tables()
tables.add(
    "api_keys",
    string(16, "id", primary_key=True),
    string(100, "name"),
    string(10, "scope"),
    string(64, "secret_hash", unique=True),
    moment("created_at", "last_used_at?", "expires_at?", "revoked_at?"),
)
tables.add(
    "idempotent_requests",
    string(64, "owner", primary_key=True),
    string(255, "key", primary_key=True),
    string(64, "fingerprint"),
    string(32, "claim_id?"),
    moment("running_until?"),
    integer("status?"),
    text("headers"),
    blob("body"),
    moment("created_at", "expires_at"),
    sa.Index("ix_idempotent_requests_expires_at", "expires_at"),
)


def upgrade() -> None:
    tables.create()


def downgrade() -> None:
    tables.drop()

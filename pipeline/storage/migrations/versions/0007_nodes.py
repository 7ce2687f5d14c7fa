"""Tokens of inference nodes and of sessions."""

from pipeline.storage.migrations.columns import Tables, moment, string

revision = "0007"
down_revision = "0006"

tables = Tables()
tables.add(
    "node_tokens",
    string(16, "id", primary_key=True),
    string(100, "name"),
    string(10, "kind"),
    string(64, "node_id"),
    string(64, "secret_hash", unique=True),
    moment("created_at", "last_used_at?", "expires_at?", "revoked_at?"),
)


def upgrade() -> None:
    tables.create()


def downgrade() -> None:
    tables.drop()

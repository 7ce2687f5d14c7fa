"""Releases of a unit because its provider failed: workers claim it after its neighbours."""

import sqlalchemy as sa
from alembic import op

from pipeline.storage.migrations.columns import add_columns, drop_columns, integer, moment

revision = "0014"
down_revision = "0013"

TABLES = (
    "documents",
    "pages",
    "music_runs",
    "music_batches",
    "screenshot_nodes",
    "screenshot_embeddings",
    "screenshot_batches",
    "screenshot_shards",
    "knowledge_items",
    "knowledge_batches",
    "webhook_deliveries",
)
INDEXES = {
    "pages": ("status IN (0, 3)", ("document_id", "provider", "attempts"), ("page", "status")),
    "music_batches": ("status IN ('PENDING', 'QUEUED')", ("run_id", "step"), ("id",)),
    "screenshot_shards": ("status IN ('failed', 'pending')", ("batch_id",), ("number",)),
    "knowledge_batches": ("status IN ('pending')", ("item_id",), ("number",)),
}
"""By table: the rows that may be claimed, and the columns before and after the number of releases."""


def upgrade() -> None:
    for table in TABLES:
        add_columns(table, *integer("releases", server_default="0"), *moment("released_at?"))
    for table, (condition, before, after) in INDEXES.items():
        _index(table, condition, [*before, "releases", *after])


def downgrade() -> None:
    for table, (condition, before, after) in INDEXES.items():
        _index(table, condition, [*before, *after])
    for table in TABLES:
        drop_columns(table, "released_at", "releases")


def _index(table: str, condition: str, columns: list[str]) -> None:
    name, where = f"ix_{table}_claimable", sa.text(condition)
    op.drop_index(name, table)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)

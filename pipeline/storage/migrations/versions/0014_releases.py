"""Releases of a unit because its provider failed: workers claim it after its neighbours."""

from alembic import op

from pipeline.storage.migrations.columns import index_where, integer, moment

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

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
        for column in (*integer("releases", server_default="0"), *moment("released_at?")):
            op.add_column(table, column)
    for table, (condition, before, after) in INDEXES.items():
        _index(table, condition, (*before, "releases", *after))


def downgrade() -> None:
    for table, (condition, before, after) in INDEXES.items():
        _index(table, condition, (*before, *after))
    for table in TABLES:
        op.drop_column(table, "released_at")
        op.drop_column(table, "releases")


def _index(table: str, condition: str, columns: tuple[str, ...]) -> None:
    name = f"ix_{table}_claimable"
    op.drop_index(name, table)
    index = index_where(condition, name, *columns)
    where = {"sqlite_where": index.dialect_options["sqlite"]["where"]}
    where["postgresql_where"] = index.dialect_options["postgresql"]["where"]
    op.create_index(name, table, list(columns), **where)

"""Screenshots: sources, frames, batches, shards, threads, nodes and what they rest on, and the full-text index"""

import sqlalchemy as sa
from alembic import op

from pipeline.engine import tables

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _batches()
    _entities()
    _sources()
    _threads()
    _nodes()
    _shards()
    _shots()
    _edges()
    _links()
    _mentions()
    _provenance()
    _rejections()
    _calls()
    _full_text()


def _batches() -> None:
    op.create_table(
        "screenshot_batches",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("correlation_id", sa.String(length=60), nullable=False),
        sa.Column("source_key", sa.String(length=120), nullable=False),
        sa.Column("shot_ids", sa.Text(), nullable=False),
        sa.Column("ts_start", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("ts_end", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("history_pack", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("step", sa.String(length=20), nullable=False),
        sa.Column("index_json", sa.Text(), nullable=True),
        sa.Column("reply", sa.Text(), nullable=True),
        sa.Column("ask", sa.String(length=10), nullable=False),
        sa.Column("made_by", sa.String(length=10), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("queue", sa.String(length=80), nullable=False),
        sa.Column("launches", sa.Integer(), nullable=False),
        sa.Column("launch_due_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("started_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("vlm_ms", sa.Integer(), nullable=False),
        sa.Column("text_ms", sa.Integer(), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("finished_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("worker_id", sa.String(length=200), nullable=True),
        sa.Column("claim_id", sa.String(length=32), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("lease_until", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_run_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_screenshot_batches")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_screenshot_batches_idempotency_key")),
    )
    op.create_index(op.f("ix_screenshot_batches_request_id"), "screenshot_batches", ["request_id"], unique=False)
    op.create_index(
        "ix_screenshot_batches_status_created_at", "screenshot_batches", ["status", "created_at"], unique=False
    )
    op.create_index(op.f("ix_screenshot_batches_worker_id"), "screenshot_batches", ["worker_id"], unique=False)


def _entities() -> None:
    op.create_table(
        "screenshot_entities",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("name_key", sa.String(length=200), nullable=False),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.Column("seen_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_screenshot_entities")),
        sa.UniqueConstraint("name_key", "type", name=op.f("uq_screenshot_entities_name_key_type")),
    )


def _sources() -> None:
    op.create_table(
        "screenshot_sources",
        sa.Column("key", sa.String(length=120), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("pressure", sa.Integer(), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("seen_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_screenshot_sources")),
    )


def _threads() -> None:
    op.create_table(
        "screenshot_threads",
        sa.Column("id", sa.String(length=60), nullable=False),
        sa.Column("title", sa.String(length=200), nullable=False),
        sa.Column("first_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("last_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_screenshot_threads")),
    )
    op.create_index("ix_screenshot_threads_last_at", "screenshot_threads", ["last_at"], unique=False)


def _nodes() -> None:
    op.create_table(
        "screenshot_nodes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("thread_id", sa.String(length=60), nullable=True),
        sa.Column("origin_key", sa.String(length=255), nullable=False),
        sa.Column("batch_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("title", sa.String(length=200), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("keywords", sa.Text(), nullable=False),
        sa.Column("entities", sa.Text(), nullable=False),
        sa.Column("importance", sa.Integer(), nullable=False),
        sa.Column("confidence", sa.Integer(), nullable=False),
        sa.Column("event_time", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("made_by", sa.String(length=10), nullable=False),
        sa.Column("own", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("merged_into_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("merged_from_ids", sa.Text(), nullable=False),
        sa.Column("vector_status", sa.String(length=10), nullable=False),
        sa.Column("vector_error", sa.Text(), nullable=True),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("worker_id", sa.String(length=200), nullable=True),
        sa.Column("claim_id", sa.String(length=32), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("lease_until", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_run_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["screenshot_batches.id"], name=op.f("fk_screenshot_nodes_batch_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["merged_into_id"],
            ["screenshot_nodes.id"],
            name=op.f("fk_screenshot_nodes_merged_into_id"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["thread_id"], ["screenshot_threads.id"], name=op.f("fk_screenshot_nodes_thread_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_screenshot_nodes")),
        sa.UniqueConstraint("origin_key", name=op.f("uq_screenshot_nodes_origin_key")),
    )
    op.create_index("ix_screenshot_nodes_batch_id", "screenshot_nodes", ["batch_id"], unique=False)
    op.create_index("ix_screenshot_nodes_event_time", "screenshot_nodes", ["event_time"], unique=False)
    op.create_index("ix_screenshot_nodes_merged_into_id", "screenshot_nodes", ["merged_into_id"], unique=False)
    op.create_index(op.f("ix_screenshot_nodes_request_id"), "screenshot_nodes", ["request_id"], unique=False)
    op.create_index("ix_screenshot_nodes_status", "screenshot_nodes", ["status"], unique=False)
    op.create_index("ix_screenshot_nodes_thread", "screenshot_nodes", ["thread_id", "kind", "status"], unique=False)
    op.create_index("ix_screenshot_nodes_vector_status", "screenshot_nodes", ["vector_status"], unique=False)
    op.create_index(op.f("ix_screenshot_nodes_worker_id"), "screenshot_nodes", ["worker_id"], unique=False)


def _shards() -> None:
    op.create_table(
        "screenshot_shards",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("batch_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("shot_ids", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("reply", sa.Text(), nullable=True),
        sa.Column("ask", sa.String(length=10), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("model", sa.String(length=120), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("worker_id", sa.String(length=200), nullable=True),
        sa.Column("claim_id", sa.String(length=32), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("lease_until", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_run_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["screenshot_batches.id"], name=op.f("fk_screenshot_shards_batch_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_screenshot_shards")),
        sa.UniqueConstraint("batch_id", "number", name=op.f("uq_screenshot_shards_batch_id_number")),
    )
    op.create_index(op.f("ix_screenshot_shards_request_id"), "screenshot_shards", ["request_id"], unique=False)
    op.create_index("ix_screenshot_shards_status", "screenshot_shards", ["status"], unique=False)
    op.create_index(op.f("ix_screenshot_shards_worker_id"), "screenshot_shards", ["worker_id"], unique=False)


def _shots() -> None:
    op.create_table(
        "screenshots",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("source_key", sa.String(length=120), nullable=False),
        sa.Column("ts", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("file", sa.String(length=120), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("phash", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("app", sa.String(length=200), nullable=False),
        sa.Column("window_title", sa.String(length=500), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("batch_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("ocr_text", sa.Text(), nullable=True),
        sa.Column("ui_text_snippets", sa.Text(), nullable=False),
        sa.Column("detected_entities", sa.Text(), nullable=False),
        sa.Column("app_guess", sa.String(length=200), nullable=False),
        sa.Column("storage_state", sa.String(length=10), nullable=False),
        sa.Column("retention_expires_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["screenshot_batches.id"], name=op.f("fk_screenshots_batch_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["source_key"], ["screenshot_sources.key"], name=op.f("fk_screenshots_source_key")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_screenshots")),
        sa.UniqueConstraint("source_key", "ts", "sha256", name=op.f("uq_screenshots_source_key_ts_sha256")),
    )
    op.create_index("ix_screenshots_batch_id", "screenshots", ["batch_id"], unique=False)
    op.create_index("ix_screenshots_retention", "screenshots", ["storage_state", "retention_expires_at"], unique=False)
    op.create_index("ix_screenshots_source_key_id", "screenshots", ["source_key", "id"], unique=False)
    op.create_index("ix_screenshots_status", "screenshots", ["status"], unique=False)
    op.create_index("ix_screenshots_ts", "screenshots", ["ts"], unique=False)


def _edges() -> None:
    op.create_table(
        "screenshot_edges",
        sa.Column("from_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("to_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("type", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(
            ["from_id"], ["screenshot_nodes.id"], name=op.f("fk_screenshot_edges_from_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["to_id"], ["screenshot_nodes.id"], name=op.f("fk_screenshot_edges_to_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("from_id", "to_id", "type", name=op.f("pk_screenshot_edges")),
    )
    op.create_index("ix_screenshot_edges_to_id", "screenshot_edges", ["to_id"], unique=False)


def _links() -> None:
    op.create_table(
        "screenshot_links",
        sa.Column("origin_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("shot_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(
            ["node_id"], ["screenshot_nodes.id"], name=op.f("fk_screenshot_links_node_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["origin_id"], ["screenshot_nodes.id"], name=op.f("fk_screenshot_links_origin_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["shot_id"], ["screenshots.id"], name=op.f("fk_screenshot_links_shot_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("origin_id", "shot_id", name=op.f("pk_screenshot_links")),
    )
    op.create_index("ix_screenshot_links_node_id", "screenshot_links", ["node_id"], unique=False)
    op.create_index("ix_screenshot_links_shot_id", "screenshot_links", ["shot_id"], unique=False)


def _mentions() -> None:
    op.create_table(
        "screenshot_mentions",
        sa.Column("node_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("entity_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("confidence", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["entity_id"], ["screenshot_entities.id"], name=op.f("fk_screenshot_mentions_entity_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["node_id"], ["screenshot_nodes.id"], name=op.f("fk_screenshot_mentions_node_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("node_id", "entity_id", name=op.f("pk_screenshot_mentions")),
    )
    op.create_index("ix_screenshot_mentions_entity_id", "screenshot_mentions", ["entity_id"], unique=False)


def _provenance() -> None:
    op.create_table(
        "screenshot_provenance",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("act", sa.String(length=20), nullable=False),
        sa.Column("from_node_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("batch_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("method", sa.String(length=20), nullable=False),
        sa.Column("model", sa.String(length=120), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["screenshot_batches.id"], name=op.f("fk_screenshot_provenance_batch_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["from_node_id"],
            ["screenshot_nodes.id"],
            name=op.f("fk_screenshot_provenance_from_node_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["node_id"], ["screenshot_nodes.id"], name=op.f("fk_screenshot_provenance_node_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_screenshot_provenance")),
        sa.UniqueConstraint(
            "node_id", "act", "from_node_id", name=op.f("uq_screenshot_provenance_node_id_act_from_node_id")
        ),
    )
    op.create_index(op.f("ix_screenshot_provenance_batch_id"), "screenshot_provenance", ["batch_id"], unique=False)
    op.create_index("ix_screenshot_provenance_from_node_id", "screenshot_provenance", ["from_node_id"], unique=False)


def _rejections() -> None:
    op.create_table(
        "screenshot_rejections",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("source_key", sa.String(length=120), nullable=False),
        sa.Column("ts", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.String(length=20), nullable=False),
        sa.Column("detail", sa.String(length=300), nullable=False),
        sa.Column("threshold", sa.Integer(), nullable=True),
        sa.Column("distance", sa.Integer(), nullable=True),
        sa.Column("nearest_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("phash", sa.String(length=64), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["nearest_id"], ["screenshots.id"], name=op.f("fk_screenshot_rejections_nearest_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_screenshot_rejections")),
    )
    op.create_index(op.f("ix_screenshot_rejections_nearest_id"), "screenshot_rejections", ["nearest_id"], unique=False)
    op.create_index(
        "ix_screenshot_rejections_source_key_ts", "screenshot_rejections", ["source_key", "ts"], unique=False
    )


def _calls() -> None:
    op.create_table(
        "screenshot_calls",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("batch_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("node_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("operation", sa.String(length=30), nullable=False),
        sa.Column("provider", sa.String(length=60), nullable=False),
        sa.Column("model", sa.String(length=120), nullable=False),
        sa.Column("prompt_hash", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("ask", sa.String(length=10), nullable=False),
        sa.Column("shot_ids", sa.Text(), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["screenshot_batches.id"], name=op.f("fk_screenshot_calls_batch_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["node_id"], ["screenshot_nodes.id"], name=op.f("fk_screenshot_calls_node_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_screenshot_calls")),
    )
    op.create_index("ix_screenshot_calls_batch_id", "screenshot_calls", ["batch_id"], unique=False)
    op.create_index("ix_screenshot_calls_node_id", "screenshot_calls", ["node_id"], unique=False)


def _full_text() -> None:
    # Terms are made by pipeline.storage.fulltext; the database keeps and ranks them.
    if op.get_bind().dialect.name == "sqlite":
        op.execute("CREATE VIRTUAL TABLE screenshot_fts USING fts5(head, apps, body, tokenize = 'ascii')")
        return
    op.execute(
        "CREATE TABLE screenshot_fts (rowid BIGINT PRIMARY KEY REFERENCES screenshot_nodes (id) ON DELETE CASCADE,"
        " terms TSVECTOR NOT NULL)"
    )
    op.execute("CREATE INDEX ix_screenshot_fts_terms ON screenshot_fts USING gin (terms)")


def downgrade() -> None:
    for name in (
        "screenshot_fts", "screenshot_calls", "screenshot_rejections", "screenshot_provenance",
        "screenshot_mentions", "screenshot_links", "screenshot_edges", "screenshots",
        "screenshot_shards", "screenshot_nodes", "screenshot_threads", "screenshot_sources",
        "screenshot_entities", "screenshot_batches",
    ):  # fmt: skip
        op.drop_table(name)

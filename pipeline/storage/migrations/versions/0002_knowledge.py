"""Knowledge bases: bases, items, chunks, batches, and a full-text index of chunks"""

import sqlalchemy as sa
from alembic import op

from pipeline.engine import tables
from pipeline.storage.migrations import columns as c

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_metadata = sa.MetaData(naming_convention=tables.NAMING)

sa.Table(
    "knowledge_bases",
    _metadata,
    *c.string(16, "id", primary_key=True),
    *c.string(255, "name", unique=True),
    *c.text("description"),
    *c.string(60, "provider"),
    *c.string(120, "model"),
    *c.integer("chunk_tokens", "chunk_overlap"),
    *c.bigint("next_position", "turn"),
    *c.boolean("deleting"),
    *c.moment("created_at", "updated_at"),
)
sa.Table(
    "knowledge_turns",
    _metadata,
    *c.integer("id", primary_key=True, autoincrement=False),
    *c.bigint("count"),
)
sa.Table(
    "knowledge_items",
    _metadata,
    *c.string(16, "id", primary_key=True),
    *c.string(16, "base_id", to="knowledge_bases.id"),
    *c.bigint("position"),
    *c.string(20, "type", "status"),
    *c.string(255, "name", "title"),
    *c.string(2000, "url?"),
    *c.text("origin?"),
    *c.string(20, "group_id?"),
    *c.text("group_name?"),
    *c.string(64, "source_key", "content_sha256?"),
    *c.bigint("size_bytes", "workload"),
    *c.integer("progress", "generation", "building"),
    *c.string(200, "space", "published_space"),
    *c.integer("chunk_count", "batches", "batches_left"),
    *c.text("error?", "warning?"),
    *c.moment("admitted_at?"),
    *c.boolean("deleting"),
    *c.moment("created_at", "updated_at", "started_at?", "finished_at?"),
    *c.claim(),
    sa.UniqueConstraint("base_id", "source_key"),
    c.index_where("claim_id IS NOT NULL", "ix_knowledge_items_claimed", "worker_id", "lease_until"),
    c.index_where("next_run_at IS NOT NULL", "ix_knowledge_items_next_run_at", "next_run_at"),
    sa.Index("ix_knowledge_items_base_id_position", "base_id", "position"),
    sa.Index("ix_knowledge_items_group_id", "group_id"),
    sa.Index("ix_knowledge_items_status", "status"),
    c.index_where(
        "status IN ('pending') AND admitted_at IS NULL AND deleting IS FALSE",
        "ix_knowledge_items_line",
        "base_id",
        "position",
    ),
    c.index_where("admitted_at IS NOT NULL", "ix_knowledge_items_admitted", "admitted_at"),
    c.index_where("deleting IS TRUE", "ix_knowledge_items_deleting", "base_id"),
)
sa.Table(
    "knowledge_chunks",
    _metadata,
    *c.ident("id", primary_key=True),
    *c.string(16, "item_id", to="knowledge_items.id"),
    *c.string(16, "base_id"),
    *c.integer("generation", "number", "batch"),
    *c.text("text", "heading"),
    *c.integer("page?"),
    *c.integer("start", "end"),
    *c.string(2000, "source?"),
    *c.string(32, "digest"),
    *c.moment("created_at"),
    sa.UniqueConstraint("item_id", "generation", "number"),
    sa.Index("ix_knowledge_chunks_base_id", "base_id"),
    sqlite_autoincrement=True,
)
sa.Table(
    "knowledge_batches",
    _metadata,
    *c.ident("id", primary_key=True),
    *c.string(16, "item_id", to="knowledge_items.id"),
    *c.integer("generation", "number", "size"),
    *c.string(20, "status"),
    *c.string(60, "provider"),
    *c.blob("vectors?"),
    *c.text("error?"),
    *c.moment("updated_at"),
    *c.claim(),
    sa.UniqueConstraint("item_id", "generation", "number"),
    c.index_where("status IN ('pending')", "ix_knowledge_batches_claimable", "item_id", "number"),
    c.index_where("claim_id IS NOT NULL", "ix_knowledge_batches_claimed", "worker_id", "lease_until"),
    c.index_where("next_run_at IS NOT NULL", "ix_knowledge_batches_next_run_at", "next_run_at"),
)


def upgrade() -> None:
    _metadata.create_all(op.get_bind(), checkfirst=False)
    # As in 0001: terms are made by pipeline.storage.fulltext.
    if op.get_bind().dialect.name == "sqlite":
        op.execute("CREATE VIRTUAL TABLE knowledge_fts USING fts5(head, apps, body, tokenize = 'ascii')")
        return
    op.execute(
        "CREATE TABLE knowledge_fts (rowid BIGINT PRIMARY KEY REFERENCES knowledge_chunks (id) ON DELETE CASCADE,"
        " terms TSVECTOR NOT NULL)"
    )
    op.execute("CREATE INDEX ix_knowledge_fts_terms ON knowledge_fts USING gin (terms)")


def downgrade() -> None:
    op.drop_table("knowledge_fts")
    _metadata.drop_all(op.get_bind(), checkfirst=False)

"""Knowledge bases: bases, items, chunks, batches, and a full-text index of chunks"""

import sqlalchemy as sa
from alembic import op

from pipeline.storage.migrations.columns import (
    Tables,
    bigint,
    blob,
    boolean,
    claim,
    claim_indexes,
    create_full_text,
    ident,
    index_where,
    integer,
    moment,
    string,
    text,
)

revision = "0002"
down_revision = "0001"

tables = Tables()

tables.add(
    "knowledge_bases",
    string(16, "id", primary_key=True),
    string(255, "name", unique=True),
    text("description"),
    string(60, "provider"),
    string(120, "model"),
    integer("chunk_tokens", "chunk_overlap"),
    bigint("next_position", "turn"),
    boolean("deleting"),
    moment("created_at", "updated_at"),
)
tables.add(
    "knowledge_turns",
    integer("id", primary_key=True, autoincrement=False),
    bigint("count"),
)
tables.add(
    "knowledge_items",
    string(16, "id", primary_key=True),
    string(16, "base_id", to="knowledge_bases.id"),
    bigint("position"),
    string(20, "type", "status"),
    string(255, "name", "title"),
    string(2000, "url?"),
    text("origin?"),
    string(20, "group_id?"),
    text("group_name?"),
    string(64, "source_key", "content_sha256?"),
    bigint("size_bytes", "workload"),
    integer("progress", "generation", "building"),
    string(200, "space", "published_space"),
    integer("chunk_count", "batches", "batches_left"),
    text("error?", "warning?"),
    moment("admitted_at?"),
    boolean("deleting"),
    moment("created_at", "updated_at", "started_at?", "finished_at?"),
    claim(),
    sa.UniqueConstraint("base_id", "source_key"),
    claim_indexes("knowledge_items"),
    sa.Index("ix_knowledge_items_base_id_position", "base_id", "position"),
    sa.Index("ix_knowledge_items_group_id", "group_id"),
    sa.Index("ix_knowledge_items_status", "status"),
    index_where(
        "status IN ('pending') AND admitted_at IS NULL AND deleting IS FALSE",
        "ix_knowledge_items_line",
        "base_id",
        "position",
    ),
    index_where("admitted_at IS NOT NULL", "ix_knowledge_items_admitted", "admitted_at"),
    index_where("deleting IS TRUE", "ix_knowledge_items_deleting", "base_id"),
)
tables.add(
    "knowledge_chunks",
    ident("id", primary_key=True),
    string(16, "item_id", to="knowledge_items.id"),
    string(16, "base_id"),
    integer("generation", "number", "batch"),
    text("text", "heading"),
    integer("page?"),
    integer("start", "end"),
    string(2000, "source?"),
    string(32, "digest"),
    moment("created_at"),
    sa.UniqueConstraint("item_id", "generation", "number"),
    sa.Index("ix_knowledge_chunks_base_id", "base_id"),
    sqlite_autoincrement=True,
)
tables.add(
    "knowledge_batches",
    ident("id", primary_key=True),
    string(16, "item_id", to="knowledge_items.id"),
    integer("generation", "number", "size"),
    string(20, "status"),
    string(60, "provider"),
    blob("vectors?"),
    text("error?"),
    moment("updated_at"),
    claim(),
    sa.UniqueConstraint("item_id", "generation", "number"),
    claim_indexes("knowledge_batches", "status IN ('pending')", "item_id", "number"),
)


def upgrade() -> None:
    tables.create()
    create_full_text("knowledge_fts", "knowledge_chunks")


def downgrade() -> None:
    op.drop_table("knowledge_fts")
    tables.drop()

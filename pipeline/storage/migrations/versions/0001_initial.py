"""The initial schema: documents, music, screenshots, vectors, live settings, calls, and a full-text index

Written down here, not taken from the models: a migration must not change when they do.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from pipeline.engine import tables
from pipeline.storage.migrations.columns import bigint as _bigint
from pipeline.storage.migrations.columns import blob as _blob
from pipeline.storage.migrations.columns import boolean as _bool
from pipeline.storage.migrations.columns import claim as _claim
from pipeline.storage.migrations.columns import double as _double
from pipeline.storage.migrations.columns import ident as _id
from pipeline.storage.migrations.columns import index_where as _index_where
from pipeline.storage.migrations.columns import integer as _int
from pipeline.storage.migrations.columns import moment as _time
from pipeline.storage.migrations.columns import real as _float
from pipeline.storage.migrations.columns import string as _str
from pipeline.storage.migrations.columns import text as _text

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_metadata = sa.MetaData(naming_convention=tables.NAMING)


def _table(name: str, *items: sa.schema.SchemaItem, **options: Any) -> None:
    sa.Table(name, _metadata, *items, **options)


_table(
    "ai_calls",
    *_id("id", primary_key=True),
    *_str(40, "flow"),
    *_str(64, "scope_id", "unit"),
    *_str(20, "capability"),
    *_str(60, "operation", "provider"),
    *_str(120, "model"),
    *_str(20, "status"),
    *_text("error?"),
    *_int("latency_ms", "input_tokens", "output_tokens"),
    *_text("preview"),
    *_time("created_at"),
    *_double("cost", server_default="0"),
    *_str(120, "queue", server_default=""),
    sa.Index("ix_ai_calls_queue_created_at", "queue", "created_at"),
    sa.Index("ix_ai_calls_created_at", "created_at"),
    sa.Index("ix_ai_calls_provider_created_at", "provider", "created_at"),
    sa.Index("ix_ai_calls_unit", "flow", "scope_id", "unit"),
)
_table(
    "documents",
    *_str(32, "id", primary_key=True),
    *_str(255, "filename"),
    *_str(10, "type"),
    *_text("page_range"),
    *_int("pages"),
    *_str(60, "provider"),
    *_str(120, "model"),
    *_str(200, "model_name"),
    *_int("progress", "status", "completed_count", "failed_count"),
    *_str(1000, "merged_path?"),
    *_text("error?"),
    *_str(80, "submission_key", unique=True),
    *_bigint("size_bytes"),
    *_bool("allow_partial", "use_cache"),
    *_time("started_at?", "finished_at?", "created_at", "updated_at"),
    *_claim(),
    *_bool("pictures", server_default="0"),
    _index_where("status IN (1, 3, 4)", "ix_documents_claimable", "created_at", "id"),
    _index_where("claim_id IS NOT NULL", "ix_documents_claimed", "worker_id", "lease_until"),
    sa.Index("ix_documents_created_at", "created_at", "id"),
    _index_where("next_run_at IS NOT NULL", "ix_documents_next_run_at", "next_run_at"),
    sa.Index("ix_documents_status_created_at", "status", "created_at", "id"),
)
_table(
    "installation",
    *_int("only", primary_key=True),
    *_str(32, "id"),
    *_bool("bound"),
    *_time("created_at"),
)
_table(
    "music_runs",
    *_str(32, "id", primary_key=True),
    *_str(20, "status"),
    *_int("active?", unique=True),
    *_str(20, "mode"),
    *_int("song_limit?", "enqueued"),
    *_bool("synced", "all_enqueued"),
    *_text("sync_report?"),
    *_str(20, "outcome?"),
    *_text("error?"),
    *_time("created_at", "updated_at", "finished_at?"),
    *_claim(),
    _index_where("claim_id IS NOT NULL", "ix_music_runs_claimed", "worker_id", "lease_until"),
    _index_where("next_run_at IS NOT NULL", "ix_music_runs_next_run_at", "next_run_at"),
)
_table(
    "music_songs",
    *_id("id", primary_key=True),
    *_str(20, "library"),
    *_str(255, "server_id"),
    *_str(500, "title", "artist", "album"),
    *_str(200, "genre"),
    *_int("year?", "duration_s?"),
    *_str(600, "path"),
    *_str(64, "musicbrainz_id"),
    *_time("seen_at", "missing_since?"),
    *_str(20, "status"),
    *_int("attempts"),
    *_text("error?"),
    *_str(32, "run_id?"),
    *_id("batch_id?"),
    *_text("description", "tags"),
    *_str(200, "mood"),
    *_bool("is_instrumental?"),
    *_double("energy_level?"),
    *_text("analysis_json?", "vector_text"),
    *_str(120, "model"),
    *_time("analysed_at?"),
    *_str(200, "vector_model"),
    *_time("created_at", "updated_at"),
    sa.Index("ix_music_songs_batch_id", "batch_id"),
    sa.Index("ix_music_songs_library_musicbrainz_id", "library", "musicbrainz_id"),
    sa.Index("ix_music_songs_library_path", "library", "path"),
    sa.Index("ix_music_songs_library_seen_at", "library", "seen_at"),
    sa.Index("ix_music_songs_library_server_id", "library", "server_id", unique=True),
    sa.Index("ix_music_songs_run_id", "run_id"),
    sa.Index("ix_music_songs_status_batch_id", "status", "batch_id"),
)
_table(
    "screenshot_batches",
    *_id("id", primary_key=True),
    *_str(60, "correlation_id"),
    *_str(120, "source_key"),
    *_text("shot_ids"),
    *_time("ts_start", "ts_end"),
    *_text("history_pack"),
    *_str(255, "idempotency_key"),
    *_str(20, "status", "step"),
    *_text("index_json?", "reply?"),
    *_str(10, "ask", "made_by"),
    *_text("notes", "error?"),
    *_int("urgency?"),
    *_time("started_at?"),
    *_int("vlm_ms", "text_ms"),
    *_time("created_at", "updated_at", "finished_at?"),
    *_claim(),
    sa.UniqueConstraint("idempotency_key"),
    _index_where(
        "status IN ('failed', 'pending')", "ix_screenshot_batches_claimable", "step", "urgency", "created_at", "id"
    ),
    _index_where("claim_id IS NOT NULL", "ix_screenshot_batches_claimed", "worker_id", "lease_until"),
    _index_where("next_run_at IS NOT NULL", "ix_screenshot_batches_next_run_at", "next_run_at"),
    sa.Index("ix_screenshot_batches_status_created_at", "status", "created_at"),
)
_table(
    "screenshot_entities",
    *_id("id", primary_key=True),
    *_str(200, "name", "name_key"),
    *_str(40, "type"),
    *_time("seen_at"),
    sa.UniqueConstraint("name_key", "type"),
)
_table(
    "screenshot_sources",
    *_str(120, "key", primary_key=True),
    *_bool("active"),
    *_int("pressure"),
    *_time("created_at", "seen_at"),
)
_table(
    "screenshot_threads",
    *_str(60, "id", primary_key=True),
    *_str(200, "title"),
    *_time("first_at", "last_at", "created_at"),
    sa.Index("ix_screenshot_threads_last_at", "last_at"),
)
_table(
    "system_settings",
    *_str(120, "key", primary_key=True),
    *_text("value"),
    *_time("updated_at"),
)
_table(
    "vector_codes",
    *_str(40, "kind", primary_key=True),
    *_id("item_id", primary_key=True),
    *_str(200, "model"),
    *_int("dims"),
    *_blob("code"),
    *_bigint("version"),
    sa.Index("ix_vector_codes_kind_version", "kind", "version"),
    sqlite_with_rowid=False,
)
_table(
    "vector_versions",
    *_str(40, "kind", primary_key=True),
    *_bigint("version", "removed"),
)
_table(
    "vectors",
    *_str(40, "kind", primary_key=True),
    *_id("item_id", primary_key=True),
    *_str(200, "model"),
    *_int("dims"),
    *_blob("data"),
    *_time("updated_at"),
    sa.Index("ix_vectors_kind_model", "kind", "model"),
)
_table(
    "music_batches",
    *_id("id", primary_key=True),
    *_str(60, "correlation_id"),
    *_str(32, "run_id", to="music_runs.id"),
    *_str(20, "mode", "step", "status"),
    *_text("song_ids"),
    *_int("songs"),
    *_text("reply?", "analysis?"),
    *_str(120, "analysis_model"),
    *_blob("vectors?"),
    *_text("vector_ids?"),
    *_str(200, "vector_model"),
    *_int("saved", "left_out", "ignored"),
    *_text("error?"),
    *_int("retry_count"),
    *_time("created_at", "updated_at", "finished_at?"),
    *_claim(),
    _index_where("status IN ('PENDING', 'QUEUED')", "ix_music_batches_claimable", "run_id", "step", "id"),
    _index_where("claim_id IS NOT NULL", "ix_music_batches_claimed", "worker_id", "lease_until"),
    _index_where("next_run_at IS NOT NULL", "ix_music_batches_next_run_at", "next_run_at"),
    sa.Index("ix_music_batches_run_id_status", "run_id", "status"),
    sa.Index("ix_music_batches_status", "status"),
)
_table(
    "page_attempts",
    *_id("id", primary_key=True),
    *_str(32, "document_id", to="documents.id"),
    *_int("page", "page_source"),
    *_str(60, "provider"),
    *_str(120, "model"),
    *_str(64, "prompt_hash", "cache_key?"),
    *_bool("cached"),
    *_str(20, "status"),
    *_bool("effective"),
    *_text("error?", "text"),
    *_int("input_tokens", "output_tokens", "latency_ms"),
    *_str(200, "worker_id"),
    *_time("created_at"),
    sa.Index("ix_page_attempts_cache_key", "cache_key"),
    sa.Index("ix_page_attempts_created_at", "created_at"),
    sa.Index("ix_page_attempts_document_page", "document_id", "page"),
)
_table(
    "pages",
    *_id("id", primary_key=True),
    *_str(32, "document_id", to="documents.id"),
    *_int("page", "page_source", "status"),
    *_str(60, "provider"),
    *_str(120, "model"),
    *_text("content"),
    *_str(1000, "image_path?"),
    *_text("error?"),
    *_int("retry_count"),
    *_bool("use_cache"),
    *_time("created_at", "updated_at"),
    *_claim(),
    _index_where("status IN (0, 3)", "ix_pages_claimable", "document_id", "provider", "attempts", "page", "status"),
    _index_where("claim_id IS NOT NULL", "ix_pages_claimed", "worker_id", "lease_until"),
    sa.Index("ix_pages_document_page", "document_id", "page", unique=True),
    sa.Index("ix_pages_document_status", "document_id", "status"),
    _index_where("next_run_at IS NOT NULL", "ix_pages_next_run_at", "next_run_at"),
)
_table(
    "screenshot_nodes",
    *_id("id", primary_key=True),
    *_str(20, "kind"),
    *_str(60, "thread_id?", to="screenshot_threads.id", on_delete="SET NULL"),
    *_str(255, "origin_key"),
    *_id("batch_id?", to="screenshot_batches.id", on_delete="SET NULL"),
    *_str(200, "title"),
    *_text("summary", "keywords", "entities"),
    *_int("importance", "confidence"),
    *_time("event_time"),
    *_str(10, "made_by"),
    *_text("own"),
    *_int("version"),
    *_str(20, "status"),
    *_text("error?"),
    *_id("merged_into_id?", to="screenshot_nodes.id", on_delete="SET NULL"),
    *_text("merged_from_ids"),
    *_time("created_at", "updated_at"),
    *_claim(),
    sa.UniqueConstraint("origin_key"),
    sa.Index("ix_screenshot_nodes_batch_id", "batch_id"),
    _index_where("status IN ('failed', 'pending')", "ix_screenshot_nodes_claimable", "event_time", "id"),
    _index_where("claim_id IS NOT NULL", "ix_screenshot_nodes_claimed", "worker_id", "lease_until"),
    sa.Index("ix_screenshot_nodes_event_time", "event_time"),
    sa.Index("ix_screenshot_nodes_merged_into_id_event_time", "merged_into_id", "event_time"),
    _index_where("next_run_at IS NOT NULL", "ix_screenshot_nodes_next_run_at", "next_run_at"),
    sa.Index("ix_screenshot_nodes_status", "status"),
    sa.Index("ix_screenshot_nodes_thread", "thread_id", "kind", "status"),
)
_table(
    "screenshot_shards",
    *_id("id", primary_key=True),
    *_id("batch_id", to="screenshot_batches.id"),
    *_int("number"),
    *_text("shot_ids"),
    *_str(20, "status"),
    *_text("result?", "reply?"),
    *_str(10, "ask"),
    *_text("notes"),
    *_str(120, "model"),
    *_text("error?"),
    *_time("created_at", "updated_at"),
    *_claim(),
    sa.UniqueConstraint("batch_id", "number"),
    _index_where("status IN ('failed', 'pending')", "ix_screenshot_shards_claimable", "batch_id", "number"),
    _index_where("claim_id IS NOT NULL", "ix_screenshot_shards_claimed", "worker_id", "lease_until"),
    _index_where("next_run_at IS NOT NULL", "ix_screenshot_shards_next_run_at", "next_run_at"),
)
_table(
    "screenshots",
    *_id("id", primary_key=True),
    *_str(120, "source_key", to="screenshot_sources.key", on_delete=None),
    *_time("ts"),
    *_str(120, "file"),
    *_str(64, "sha256", "phash"),
    *_int("size_bytes"),
    *_str(200, "app"),
    *_str(500, "window_title"),
    *_str(20, "status"),
    *_text("error?"),
    *_id("batch_id?", to="screenshot_batches.id", on_delete="SET NULL"),
    *_text("ocr_text?", "ui_text_snippets", "detected_entities"),
    *_str(200, "app_guess"),
    *_str(10, "storage_state"),
    *_time("retention_expires_at?", "created_at", "updated_at"),
    sa.UniqueConstraint("source_key", "ts", "sha256"),
    sa.Index("ix_screenshots_batch_id", "batch_id"),
    _index_where("batch_id IS NULL", "ix_screenshots_buffer", "source_key", "created_at"),
    _index_where(
        "retention_expires_at IS NOT NULL", "ix_screenshots_retention", "storage_state", "retention_expires_at"
    ),
    sa.Index("ix_screenshots_source_key_id", "source_key", "id"),
    sa.Index("ix_screenshots_status", "status"),
    sa.Index("ix_screenshots_ts", "ts"),
)
_table(
    "page_layouts",
    *_id("page_id", to="pages.id", primary_key=True),
    *_blob("data"),
)
_table(
    "screenshot_calls",
    *_id("id", primary_key=True),
    *_id("batch_id?", to="screenshot_batches.id"),
    *_id("node_id?", to="screenshot_nodes.id"),
    *_str(30, "operation"),
    *_str(60, "provider"),
    *_str(120, "model"),
    *_str(64, "prompt_hash"),
    *_int("attempt"),
    *_str(10, "ask"),
    *_text("shot_ids"),
    *_time("created_at"),
    sa.Index("ix_screenshot_calls_batch_id", "batch_id"),
    sa.Index("ix_screenshot_calls_node_id", "node_id"),
)
_table(
    "screenshot_edges",
    *_id("from_id", "to_id", to="screenshot_nodes.id", primary_key=True),
    *_str(40, "type", primary_key=True),
    sa.Index("ix_screenshot_edges_to_id", "to_id"),
)
_table(
    "screenshot_embeddings",
    *_id("id", to="screenshot_nodes.id", primary_key=True),
    *_str(20, "status"),
    *_text("error?"),
    *_time("created_at", "updated_at"),
    *_claim(),
    _index_where("status IN ('failed', 'pending')", "ix_screenshot_embeddings_claimable", "id"),
    _index_where("claim_id IS NOT NULL", "ix_screenshot_embeddings_claimed", "worker_id", "lease_until"),
    _index_where("next_run_at IS NOT NULL", "ix_screenshot_embeddings_next_run_at", "next_run_at"),
    sa.Index("ix_screenshot_embeddings_status", "status"),
)
_table(
    "screenshot_links",
    *_id("origin_id", to="screenshot_nodes.id", primary_key=True),
    *_id("shot_id", to="screenshots.id", primary_key=True),
    *_id("node_id", to="screenshot_nodes.id"),
    sa.Index("ix_screenshot_links_node_id", "node_id"),
    sa.Index("ix_screenshot_links_shot_id", "shot_id"),
)
_table(
    "screenshot_mentions",
    *_id("node_id", to="screenshot_nodes.id", primary_key=True),
    *_id("entity_id", to="screenshot_entities.id", primary_key=True),
    *_float("confidence"),
    sa.Index("ix_screenshot_mentions_entity_id", "entity_id"),
)
_table(
    "screenshot_provenance",
    *_id("id", primary_key=True),
    *_id("node_id", to="screenshot_nodes.id"),
    *_str(20, "act"),
    *_id("from_node_id?", to="screenshot_nodes.id"),
    *_id("batch_id?", to="screenshot_batches.id", on_delete="SET NULL", index=True),
    *_str(20, "method"),
    *_str(120, "model"),
    *_time("created_at"),
    sa.UniqueConstraint("node_id", "act", "from_node_id"),
    sa.Index("ix_screenshot_provenance_from_node_id", "from_node_id"),
)
_table(
    "screenshot_rejections",
    *_id("id", primary_key=True),
    *_str(120, "source_key"),
    *_time("ts"),
    *_str(20, "reason"),
    *_str(300, "detail"),
    *_int("threshold?", "distance?"),
    *_id("nearest_id?", to="screenshots.id", on_delete="SET NULL", index=True),
    *_str(64, "sha256", "phash"),
    *_time("created_at"),
    sa.Index("ix_screenshot_rejections_created_at", "created_at"),
    sa.Index("ix_screenshot_rejections_source_key_ts", "source_key", "ts"),
)


def upgrade() -> None:
    _metadata.create_all(op.get_bind(), checkfirst=False)
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
    op.drop_table("screenshot_fts")
    _metadata.drop_all(op.get_bind(), checkfirst=False)

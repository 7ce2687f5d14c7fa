"""Documents, pages, attempts and AI calls"""

import sqlalchemy as sa
from alembic import op

from pipeline.engine import tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_ai_calls()
    _create_documents()
    _create_page_attempts()
    _create_pages()


def _create_ai_calls() -> None:
    op.create_table(
        "ai_calls",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("flow", sa.String(length=40), nullable=False),
        sa.Column("scope_id", sa.String(length=64), nullable=False),
        sa.Column("unit", sa.String(length=64), nullable=False),
        sa.Column("capability", sa.String(length=20), nullable=False),
        sa.Column("operation", sa.String(length=60), nullable=False),
        sa.Column("provider", sa.String(length=60), nullable=False),
        sa.Column("model", sa.String(length=120), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("latency_ms", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("preview", sa.Text(), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ai_calls")),
    )
    with op.batch_alter_table("ai_calls", schema=None) as batch_op:
        batch_op.create_index("ix_ai_calls_created_at", ["created_at"], unique=False)
        batch_op.create_index("ix_ai_calls_unit", ["flow", "scope_id", "unit"], unique=False)


def _create_documents() -> None:
    op.create_table(
        "documents",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("type", sa.String(length=10), nullable=False),
        sa.Column("page_range", sa.Text(), nullable=False),
        sa.Column("pages", sa.Integer(), nullable=False),
        sa.Column("provider", sa.String(length=60), nullable=False),
        sa.Column("model", sa.String(length=120), nullable=False),
        sa.Column("model_name", sa.String(length=200), nullable=False),
        sa.Column("progress", sa.Integer(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("completed_count", sa.Integer(), nullable=False),
        sa.Column("failed_count", sa.Integer(), nullable=False),
        sa.Column("merged_path", sa.String(length=1000), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("submission_key", sa.String(length=80), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("allow_partial", sa.Boolean(), nullable=False),
        sa.Column("use_cache", sa.Boolean(), nullable=False),
        sa.Column("launches", sa.Integer(), nullable=False),
        sa.Column("launch_due_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("started_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("finished_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("worker_id", sa.String(length=200), nullable=True),
        sa.Column("claim_id", sa.String(length=32), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("lease_until", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_run_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_documents")),
        sa.UniqueConstraint("submission_key", name=op.f("uq_documents_submission_key")),
    )
    with op.batch_alter_table("documents", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_documents_request_id"), ["request_id"], unique=False)
        batch_op.create_index("ix_documents_status_updated_at", ["status", "updated_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_documents_worker_id"), ["worker_id"], unique=False)


def _create_page_attempts() -> None:
    op.create_table(
        "page_attempts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("document_id", sa.String(length=32), nullable=False),
        sa.Column("page", sa.Integer(), nullable=False),
        sa.Column("page_source", sa.Integer(), nullable=False),
        sa.Column("provider", sa.String(length=60), nullable=False),
        sa.Column("model", sa.String(length=120), nullable=False),
        sa.Column("prompt_hash", sa.String(length=64), nullable=False),
        sa.Column("cache_key", sa.String(length=64), nullable=True),
        sa.Column("cached", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("effective", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("latency_ms", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=200), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["document_id"], ["documents.id"], name=op.f("fk_page_attempts_document_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_page_attempts")),
    )
    with op.batch_alter_table("page_attempts", schema=None) as batch_op:
        batch_op.create_index("ix_page_attempts_cache_key", ["cache_key"], unique=False)
        batch_op.create_index("ix_page_attempts_created_at", ["created_at"], unique=False)
        batch_op.create_index("ix_page_attempts_document_page", ["document_id", "page"], unique=False)


def _create_pages() -> None:
    op.create_table(
        "pages",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("document_id", sa.String(length=32), nullable=False),
        sa.Column("page", sa.Integer(), nullable=False),
        sa.Column("page_source", sa.Integer(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("provider", sa.String(length=60), nullable=False),
        sa.Column("model", sa.String(length=120), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("image_path", sa.String(length=1000), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("retry_count", sa.Integer(), nullable=False),
        sa.Column("use_cache", sa.Boolean(), nullable=False),
        sa.Column("created_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", tables.UtcDateTime(timezone=True), nullable=False),
        sa.Column("worker_id", sa.String(length=200), nullable=True),
        sa.Column("claim_id", sa.String(length=32), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("lease_until", tables.UtcDateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_run_at", tables.UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["document_id"], ["documents.id"], name=op.f("fk_pages_document_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pages")),
    )
    with op.batch_alter_table("pages", schema=None) as batch_op:
        batch_op.create_index("ix_pages_document_page", ["document_id", "page"], unique=True)
        batch_op.create_index("ix_pages_document_status", ["document_id", "status"], unique=False)
        batch_op.create_index(batch_op.f("ix_pages_request_id"), ["request_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_pages_worker_id"), ["worker_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("pages", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_pages_worker_id"))
        batch_op.drop_index(batch_op.f("ix_pages_request_id"))
        batch_op.drop_index("ix_pages_document_status")
        batch_op.drop_index("ix_pages_document_page")

    op.drop_table("pages")
    with op.batch_alter_table("page_attempts", schema=None) as batch_op:
        batch_op.drop_index("ix_page_attempts_document_page")
        batch_op.drop_index("ix_page_attempts_created_at")
        batch_op.drop_index("ix_page_attempts_cache_key")

    op.drop_table("page_attempts")
    with op.batch_alter_table("documents", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_documents_worker_id"))
        batch_op.drop_index("ix_documents_status_updated_at")
        batch_op.drop_index(batch_op.f("ix_documents_request_id"))

    op.drop_table("documents")
    with op.batch_alter_table("ai_calls", schema=None) as batch_op:
        batch_op.drop_index("ix_ai_calls_unit")
        batch_op.drop_index("ix_ai_calls_created_at")

    op.drop_table("ai_calls")

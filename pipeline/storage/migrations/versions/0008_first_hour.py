"""What the first hour with Penstock showed to be missing."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.orm import Session

from pipeline.engine.tables import UtcDateTime
from pipeline.flows.music import fulltext

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


# What was paid before, by the calls still on record. A call and its attempt took the same time and tokens.
_PAID = """
    UPDATE page_attempts SET cost = coalesce((
        SELECT max(calls.cost) FROM ai_calls AS calls
        WHERE calls.flow = 'documents' AND calls.scope_id = page_attempts.document_id
            AND calls.unit = CAST(page_attempts.page AS VARCHAR(20)) AND calls.provider = page_attempts.provider
            AND calls.latency_ms = page_attempts.latency_ms AND calls.input_tokens = page_attempts.input_tokens
    ), 0) WHERE provider <> 'local' AND NOT cached
"""
_PAID_FOR_DOCUMENTS = """
    UPDATE documents SET cost = coalesce((
        SELECT sum(calls.cost) FROM ai_calls AS calls WHERE calls.flow = 'documents' AND calls.scope_id = documents.id
    ), 0)
"""


def _screenshot_columns() -> dict[str, tuple[sa.Column[Any], ...]]:
    """Attempts and waits of frames and batches, and the files that were added."""
    return {
        "screenshots": (
            sa.Column("original_path", sa.Text(), nullable=False, server_default=""),
            sa.Column("vlm_attempts", sa.Integer(), nullable=False, server_default="0"),
            sa.Column("vlm_next_run_at", UtcDateTime(), nullable=True),
            sa.Column("app_guess_confidence", sa.Float(), nullable=True),
        ),
        "screenshot_batches": (
            sa.Column("attempts_before", sa.Integer(), nullable=False, server_default="0"),
            sa.Column("rests_since", UtcDateTime(), nullable=True),
            sa.Column("waited_ms", sa.BigInteger(), nullable=False, server_default="0"),
        ),
    }


def _full_text(table: str, items: str) -> None:
    """A table of full text. Terms are made by pipeline.storage.fulltext; the database keeps and ranks them."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE VIRTUAL TABLE {table} USING fts5(head, apps, body, tokenize = 'ascii')")
        return
    op.execute(
        f"CREATE TABLE {table} (rowid BIGINT PRIMARY KEY REFERENCES {items} (id) ON DELETE CASCADE,"
        " terms TSVECTOR NOT NULL)"
    )
    op.execute(f"CREATE INDEX ix_{table}_terms ON {table} USING gin (terms)")


def _search_documents() -> None:
    """Pages in full text. Those of documents that were merged before are indexed later, some a minute."""
    _full_text("page_fts", "pages")
    op.add_column("documents", sa.Column("unindexed", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("UPDATE documents SET unindexed = true WHERE merged_path IS NOT NULL")
    op.create_index(
        "ix_documents_unindexed",
        "documents",
        ["finished_at"],
        sqlite_where=sa.text("unindexed = 1"),
        postgresql_where=sa.text("unindexed"),
    )


def _index_songs() -> None:
    _full_text("music_fts", "music_songs")
    with Session(bind=op.get_bind()) as session:
        fulltext.index(session, list(session.execute(sa.text("SELECT id FROM music_songs")).scalars()))
        session.commit()  # the session's part: the migration's transaction goes on


def upgrade() -> None:
    for table in ("documents", "page_attempts"):
        op.add_column(table, sa.Column("cost", sa.Double(), nullable=False, server_default="0"))
    op.add_column("documents", sa.Column("outdated", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("documents", sa.Column("doubtful_count", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("pages", sa.Column("confidence", sa.Double(), nullable=True))
    op.add_column("pages", sa.Column("doubtful", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(_PAID)
    op.execute(_PAID_FOR_DOCUMENTS)
    op.add_column("documents", sa.Column("source_path", sa.Text, nullable=False, server_default=""))
    _search_documents()
    for table, columns in _screenshot_columns().items():
        for column in columns:
            op.add_column(table, column)
    _index_songs()


def downgrade() -> None:
    op.drop_table("music_fts")
    for table, columns in _screenshot_columns().items():
        for column in columns:
            op.drop_column(table, column.name)
    op.drop_table("page_fts")
    op.drop_index("ix_documents_unindexed", "documents")
    op.drop_column("documents", "unindexed")
    op.drop_column("documents", "source_path")
    for table in ("documents", "page_attempts"):
        op.drop_column(table, "cost")
    op.drop_column("documents", "outdated")
    op.drop_column("documents", "doubtful_count")
    op.drop_column("pages", "confidence")
    op.drop_column("pages", "doubtful")

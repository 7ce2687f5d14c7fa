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
    """Attempts and waits of frames and batches."""
    return {
        "screenshots": (
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


def _index_songs() -> None:
    """Songs in full text. Terms are made by pipeline.storage.fulltext; the database keeps and ranks them."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute("CREATE VIRTUAL TABLE music_fts USING fts5(head, apps, body, tokenize = 'ascii')")
    else:
        op.execute(
            "CREATE TABLE music_fts (rowid BIGINT PRIMARY KEY REFERENCES music_songs (id) ON DELETE CASCADE,"
            " terms TSVECTOR NOT NULL)"
        )
        op.execute("CREATE INDEX ix_music_fts_terms ON music_fts USING gin (terms)")
    with Session(bind=op.get_bind()) as session:
        fulltext.index(session, list(session.execute(sa.text("SELECT id FROM music_songs")).scalars()))
        session.commit()  # the session's part: the migration's transaction goes on


def upgrade() -> None:
    for table in ("documents", "page_attempts"):
        op.add_column(table, sa.Column("cost", sa.Double(), nullable=False, server_default="0"))
    op.add_column("documents", sa.Column("outdated", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(_PAID)
    op.execute(_PAID_FOR_DOCUMENTS)
    op.add_column("documents", sa.Column("source_path", sa.Text, nullable=False, server_default=""))
    for table, columns in _screenshot_columns().items():
        for column in columns:
            op.add_column(table, column)
    _index_songs()


def downgrade() -> None:
    op.drop_table("music_fts")
    for table, columns in _screenshot_columns().items():
        for column in columns:
            op.drop_column(table, column.name)
    op.drop_column("documents", "source_path")
    for table in ("documents", "page_attempts"):
        op.drop_column(table, "cost")
    op.drop_column("documents", "outdated")

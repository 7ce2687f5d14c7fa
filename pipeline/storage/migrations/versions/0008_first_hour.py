"""What the first hour with Penstock showed to be missing."""

import json
import re
import unicodedata
from typing import Any

import sqlalchemy as sa
from alembic import op

from pipeline.storage.migrations.columns import (
    add_columns,
    bigint,
    boolean,
    create_full_text,
    double,
    drop_columns,
    integer,
    moment,
    real,
    text,
)

revision = "0008"
down_revision = "0007"

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


def _columns() -> dict[str, list[sa.Column[Any]]]:
    return {
        "documents": [
            *double("cost", server_default="0"),
            *boolean("outdated", server_default=sa.false()),
            *integer("doubtful_count", server_default="0"),
            *text("source_path", server_default=""),
            *boolean("unindexed", server_default=sa.false()),
        ],
        "page_attempts": double("cost", server_default="0"),
        "pages": [*double("confidence?"), *boolean("doubtful", server_default=sa.false())],
        # Attempts and waits of frames and batches, and the files that were added.
        "screenshots": [
            *text("original_path", server_default=""),
            *integer("vlm_attempts", server_default="0"),
            *moment("vlm_next_run_at?"),
            *real("app_guess_confidence?"),
        ],
        "screenshot_batches": [
            *integer("attempts_before", server_default="0"),
            *moment("rests_since?"),
            *bigint("waited_ms", server_default="0"),
        ],
    }


# How Penstock made terms when it made this index: a frozen copy of that part of pipeline.storage.fulltext.
_CJK = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_TERM = re.compile(f"([{_CJK}]+)|(?:(?![{_CJK}])[^\\W_])+")
_OTHER_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe"})
_KANA_MARKS = {"\u3099", "\u309a"}
_FIELDS = {"head": ("A", 1000), "apps": ("C", 200), "body": ("D", 8000)}
"""Each with its weight and with how many terms it has at most."""
_MOST_BYTES = 800_000
"""Of the terms of one song: a tsvector holds a million, overhead included."""


def _plain(letter: str) -> str:
    first, *marks = list(unicodedata.normalize("NFD", letter))
    is_accented = marks and all(unicodedata.category(mark) == "Mn" and mark not in _KANA_MARKS for mark in marks)
    return first if is_accented else letter.translate(_OTHER_LETTERS)


def _terms(words: str) -> list[str]:
    found: list[str] = []
    for match in _TERM.finditer("".join(map(_plain, unicodedata.normalize("NFKC", words).casefold()))):
        run = match.group()
        found += [run[i : i + 2] for i in range(len(run))] if match[1] else [run[:64]]
    return found


def _index_songs() -> None:
    create_full_text("music_fts", "music_songs")
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    for song in connection.execute(sa.text("SELECT * FROM music_songs"), execution_options={"yield_per": 500}):
        fields = {
            "head": [song.title, song.artist],
            "apps": [song.album, song.genre, str(song.year or "")],
            "body": [song.mood, *json.loads(song.tags), song.description],
        }
        values: dict[str, Any] = {"id": song.id}
        lexemes: list[str] = []
        position, size = 0, 0
        for name, (weight, most) in _FIELDS.items():
            terms = _terms(" \n".join(fields[name]))[:most]
            values[name] = " ".join(terms)
            for position, term in enumerate(terms, position + 1):  # noqa: B020  # it goes on where the last field ended
                size += len(term.encode())
                if size <= _MOST_BYTES:
                    lexemes.append(f"'{term}':{position}{weight}")
            position += 1  # no phrase goes from one field into the next
        if is_sqlite:
            insert = "INSERT INTO music_fts (rowid, head, apps, body) VALUES (:id, :head, :apps, :body)"
        else:
            insert = "INSERT INTO music_fts (rowid, terms) VALUES (:id, CAST(:terms AS tsvector))"
            values["terms"] = " ".join(lexemes)
        connection.execute(sa.text(insert), values)


def upgrade() -> None:
    for table, columns in _columns().items():
        add_columns(table, *columns)
    op.execute(_PAID)
    op.execute(_PAID_FOR_DOCUMENTS)
    # Pages in full text. Those of documents that were merged before are indexed later, some a minute.
    create_full_text("page_fts", "pages")
    op.execute("UPDATE documents SET unindexed = true WHERE merged_path IS NOT NULL")
    op.create_index(
        "ix_documents_unindexed",
        "documents",
        ["finished_at"],
        sqlite_where=sa.text("unindexed = 1"),
        postgresql_where=sa.text("unindexed"),
    )
    _index_songs()


def downgrade() -> None:
    op.drop_table("music_fts")
    op.drop_table("page_fts")
    op.drop_index("ix_documents_unindexed", "documents")
    for table, columns in _columns().items():
        drop_columns(table, *(column.name for column in columns))

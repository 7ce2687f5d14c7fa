"""Rows like after years of use, a million pages, inserted within seconds: for query plans and benchmarks."""

from dataclasses import dataclass

from sqlalchemy import text

from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.storage.database import Database

LEDGER = 50_000
"""Attempts, and calls on record."""


@dataclass(frozen=True)
class Shape:
    """The numbers of documents and pages.

    The first `waiting` documents wait with all their pages at `provider`; the last `open` documents can be converted
    here; all others are completed.
    """

    documents: int = 10_000
    pages: int = 100
    waiting: int = 3_000
    provider: str = "closed"
    open: int = 0


def document_id(number: int) -> str:
    """Return the id of the document with this number, from 1."""
    return f"d{number:06}"


def fill(db: Database, shape: Shape) -> None:
    """Insert the rows."""
    numbers = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {0})"
        if db.is_sqlite
        else "WITH n(i) AS (SELECT generate_series(1, {0}))"
    )
    name = "printf('d%06d', {0})" if db.is_sqlite else "'d' || lpad(({0})::text, 6, '0')"
    now = (
        "strftime('%Y-%m-%d %H:%M:%f000', 1767225600 + i, 'unixepoch')"
        if db.is_sqlite
        else "to_timestamp(1767225600 + i)"
    )
    waits, open_ = f"i <= {shape.waiting}", f"i <= {shape.waiting} OR i > {shape.documents - shape.open}"
    documents = f"""{numbers.format(shape.documents)}
        INSERT INTO documents (id, filename, type, page_range, pages, provider, model, model_name, progress, status,
          completed_count, failed_count, submission_key, size_bytes, allow_partial, use_cache, pictures, attempts,
          created_at, updated_at)
        SELECT {name.format("i")}, 'a.pdf', 'pdf', '', {shape.pages}, {_if(waits, shape.provider, "local")}, '', '', 5,
          CASE WHEN {open_} THEN {int(DocumentStatus.PROCESSING)} ELSE {int(DocumentStatus.COMPLETED)} END,
          CASE WHEN {open_} THEN 0 ELSE {shape.pages} END, 0, 'key' || i, 1000, {_no(db)}, {_no(db)}, {_no(db)}, 0,
          {now}, {now} FROM n"""
    owner = f"(i - 1) / {shape.pages} + 1"
    waits = f"{owner} <= {shape.waiting}"
    open_ = f"{waits} OR {owner} > {shape.documents - shape.open}"
    pages = f"""{numbers.format(shape.documents * shape.pages)}
        INSERT INTO pages (document_id, page, page_source, status, provider, model, content, retry_count, use_cache,
          attempts, created_at, updated_at)
        SELECT {name.format(owner)}, (i - 1) % {shape.pages} + 1, (i - 1) % {shape.pages} + 1,
          CASE WHEN {open_} THEN {int(PageStatus.PENDING)} ELSE {int(PageStatus.COMPLETED)} END,
          {_if(waits, shape.provider, "local")}, '', 'text', 0, {_no(db)}, CASE WHEN {open_} THEN 0 ELSE 1 END,
          {now}, {now} FROM n"""
    with db.transaction() as session:
        session.execute(text(documents.replace(":", "\\:")))
        session.execute(text(pages.replace(":", "\\:")))
        session.execute(text(_ledger(numbers.format(LEDGER), now, db).replace(":", "\\:")))
        session.execute(text(_calls(numbers.format(LEDGER), now).replace(":", "\\:")))
    analyse(db)


def _ledger(numbers: str, now: str, db: Database) -> str:
    return f"""{numbers} INSERT INTO page_attempts (document_id, page, page_source, provider, model, prompt_hash,
          cached, status, effective, text, input_tokens, output_tokens, latency_ms, worker_id, created_at)
        SELECT 'd000001', i, i, 'local', '', '', {_no(db)}, 'completed', {_no(db)}, '', 0, 0, 1, 'w', {now} FROM n"""


def _calls(numbers: str, now: str) -> str:
    return f"""{numbers} INSERT INTO ai_calls (flow, scope_id, unit, capability, operation, provider, queue, model,
          status, latency_ms, input_tokens, output_tokens, cost, preview, created_at)
        SELECT 'documents', 'd000001', i, 'vision', 'look', 'one', 'vision.one', 'm', 'ok', 1, 1, 1, 0, '', {now}
        FROM n"""


def analyse(db: Database) -> None:
    """Update PostgreSQL's statistics. SQLite plans without them, as in production."""
    if not db.is_sqlite:
        with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for name in (DOCUMENTS.name, PAGES.name, "page_attempts", "ai_calls"):
                connection.execute(text(f"VACUUM ANALYZE {name}"))


def _if(condition: str, then: str, other: str) -> str:
    return f"CASE WHEN {condition} THEN '{then}' ELSE '{other}' END"


def _no(db: Database) -> str:
    return "0" if db.is_sqlite else "false"

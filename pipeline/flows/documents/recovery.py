"""Maintenance of documents: fail pages of removed providers, delete expired documents, and files without a row."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import ColumnElement, delete, func, select

from pipeline.engine import work
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.transaction import Tx
from pipeline.flows.documents import files, service
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, ESCALATIONS, PAGES
from pipeline.flows.documents.states import AT_REST, DocumentStatus, EscalationState
from pipeline.flows.documents.work import escalation, text_index
from pipeline.flows.documents.work.document import lock
from pipeline.flows.documents.work.page import CONVERT
from pipeline.providers import registry
from pipeline.storage import installation, retention
from pipeline.storage.context import Context
from pipeline.storage.retention import LEDGER_LEAST, Retention, Rule

log = structlog.get_logger(__name__)
PORTION = 500
_AT_ONCE = 20
"""Documents of one query; each is deleted in a transaction of its own."""


def fail_unserved(context: Context) -> list[str]:
    """Fail the due pages of removed providers in processing documents, and end escalations to providers that have been
    silent for too long; return the ids of the changed documents.

    Handles at most `PORTION` pairs of document and provider per call. The query scans all waiting pages.
    """
    processing = select(DOCUMENTS.c.id).where(DOCUMENTS.c.status == DocumentStatus.PROCESSING)
    query = (
        select(PAGES.c.document_id, PAGES.c.provider)
        .where(
            CONVERT.due(context.db.now()),
            PAGES.c.provider.not_in(registry.names(context.settings)),
            PAGES.c.document_id.in_(processing),
        )
        .distinct()
        .limit(PORTION)
    )
    with context.db.read() as session:
        rows = session.execute(query).all()
    failed = {row.document_id for row in rows if _fail(context, row.document_id, row.provider)}
    return sorted(failed | _end_overdue(context))


def _end_overdue(context: Context) -> set[str]:
    """Complete pages with their earlier texts if their escalation is open, and no page of their document has ended for
    `escalate_wait_s`; return the ids of the changed documents."""
    wait_s = context.settings.documents.escalate_wait_s
    still = DOCUMENTS.c.updated_at < context.db.now() - timedelta(seconds=wait_s)
    is_open = (ESCALATIONS.c.state == EscalationState.OPEN, ESCALATIONS.c.has_text)
    query = (
        select(DOCUMENTS.c.id)
        .join(ESCALATIONS, ESCALATIONS.c.document_id == DOCUMENTS.c.id)
        .where(*is_open, DOCUMENTS.c.status == DocumentStatus.PROCESSING, still)
        .distinct()
        .limit(PORTION)
    )
    with context.db.read() as session:
        ids = session.execute(query).scalars().all()

    def act(tx: Tx, document_id: str) -> bool:
        document = lock(tx, document_id)
        if document is None or document.status != DocumentStatus.PROCESSING:
            return False
        if document.updated_at >= tx.now - timedelta(seconds=wait_s):
            return False
        kept = escalation.give_up(tx, document, escalation.silent(document.escalate, wait_s))
        CONVERT.after(tx, document, work.Changes(done=tuple(kept)))
        tx.launch("documents", document_id)
        return bool(kept)

    return {each for each in ids if context.db.run(lambda tx, each=each: act(tx, each))}  # type: ignore[misc]


def _fail(context: Context, document_id: str, provider: str) -> int:
    message = (
        f"{registry.unknown(context.settings, provider)}. Or convert these pages with another one: "
        f"`penstock documents retry {document_id} --failed --provider NAME`"
    )
    error = UnitError(message, kind=ErrorKind.PERMANENT, code="unknown_provider")

    def act(tx: Tx) -> int:
        document = lock(tx, document_id)
        if document is None or document.status != DocumentStatus.PROCESSING:
            return 0
        return len(work.refuse(tx, CONVERT, document, error, PAGES.c.provider == provider))

    failed = context.db.run(act)
    log.error("pages.without_provider", document=document_id, provider=provider, pages=failed)
    return failed


def retained(context: Context) -> list[Retention]:
    """Return the rules of retention: for finished documents with their pages and files, and for attempts, whose texts
    are the cache of conversion."""
    kept = context.settings.retention
    ended_at = func.coalesce(DOCUMENTS.c.finished_at, DOCUMENTS.c.updated_at)
    return [
        retention.rows(
            "documents",
            Rule(kept.documents_days, kept.documents_count),
            DOCUMENTS.c.id,
            ended_at,
            DOCUMENTS.c.status.in_(AT_REST),
            discard=_discard,
            portion=_AT_ONCE,
        ),
        retention.rows(
            "attempts",
            Rule(kept.attempts_days, kept.attempts_count),
            ATTEMPTS.c.id,
            ATTEMPTS.c.created_at,
            least=LEDGER_LEAST,
        ),
    ]


def _discard(context: Context, ids: Sequence[str], over: ColumnElement[bool]) -> int:
    """Delete, of these documents, all that still meet the condition `over`, with attempts and files, and return how
    many."""
    removed = 0
    for document_id in ids:
        still = select(DOCUMENTS.c.id).where(DOCUMENTS.c.id == document_id, over)
        # The attempts' texts are most of the data, so they go first, in portions; a document is complete without them.
        some = (
            select(ATTEMPTS.c.id).where(ATTEMPTS.c.document_id == document_id, still.exists()).limit(retention.PORTION)
        )
        portion = delete(ATTEMPTS).where(ATTEMPTS.c.id.in_(some)).returning(ATTEMPTS.c.id)
        while context.db.run(lambda tx, portion=portion: len(tx.execute(portion).all())):  # type: ignore[misc]
            pass
        text_index.forget_ahead(context, document_id)

        def act(tx: Tx, document_id: str = document_id, still: Any = still) -> bool:
            due = tx.execute(still.with_for_update()).first() is not None
            if due:
                service.remove_rows(tx, document_id)
            return due

        if context.db.run(act):
            files.remove_all(context.settings, document_id)
            removed += 1
    return removed


def remove_orphans(context: Context) -> int:
    """Remove old stored files that no row owns, and old temp folders of documents at rest.

    Returns how many folders and files it removed: none if the data folder belongs to another database.
    Rule: docs/sources/documents.md#cleanup.
    """
    settings = context.settings
    if not installation.belong_together(context):
        return 0
    before = time.time() - settings.documents.stale_temp_s
    with context.db.read() as session:
        known = {
            row.id: DocumentStatus(row.status) for row in session.execute(select(DOCUMENTS.c.id, DOCUMENTS.c.status))
        }
    removed = 0
    for folder in (settings.upload_dir, settings.output_dir, settings.temp_dir, settings.view_dir):
        for entry in folder.iterdir() if folder.is_dir() else ():
            status = known.get(entry.name)
            wanted = status is not None and (folder != settings.temp_dir or status not in AT_REST)
            with suppress(FileNotFoundError):
                if not wanted and entry.stat().st_mtime < before:
                    files.remove(entry)
                    removed += 1
    return removed

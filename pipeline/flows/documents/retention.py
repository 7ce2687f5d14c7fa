"""How long documents and their attempts are kept."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from pipeline.flows.documents import files, service
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS
from pipeline.flows.documents.states import AT_REST
from pipeline.flows.documents.work import text_index
from pipeline.storage import retention
from pipeline.storage.context import Context
from pipeline.storage.retention import LEDGER_LEAST, Retention, Rule

_AT_ONCE = 20
"""Documents found by one query; each goes in a transaction of its own."""


def retained(context: Context) -> list[Retention]:
    """Finished documents with all that is theirs, and attempts, whose texts are the cache."""
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
    """Delete those of the documents that nobody has taken up again."""
    removed = 0
    for document_id in ids:
        still = select(DOCUMENTS.c.id).where(DOCUMENTS.c.id == document_id, over)
        # The texts of all attempts are the most of it. Without them a document is still whole.
        some = (
            select(ATTEMPTS.c.id).where(ATTEMPTS.c.document_id == document_id, still.exists()).limit(retention.PORTION)
        )
        portion = delete(ATTEMPTS).where(ATTEMPTS.c.id.in_(some)).returning(ATTEMPTS.c.id)
        while context.db.run(lambda session, portion=portion: len(session.execute(portion).all())):  # type: ignore[misc]
            pass
        text_index.forget_ahead(context, document_id)

        def work(session: Session, document_id: str = document_id, still: Any = still) -> bool:
            due = session.execute(still.with_for_update()).first() is not None
            if due:
                service.remove_rows(session, document_id)
            return due

        if context.db.run(work):
            files.remove_all(context.settings, document_id)
            removed += 1
    return removed

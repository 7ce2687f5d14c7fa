"""Pages whose provider is not configured any more: no lane would ever take them, so they fail and say what to do."""

from uuid import uuid4

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from pipeline.engine import work
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DocumentStatus
from pipeline.flows.documents.work.document import lock
from pipeline.flows.documents.work.page import CONVERT
from pipeline.providers import registry
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PORTION = 500


def fail_unserved(context: Context) -> list[str]:
    """Fail the due pages of providers that are not configured any more; their documents. Reads all that waits."""
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
        found = session.execute(query).all()
    failed = {row.document_id for row in found if _fail(context, row.document_id, row.provider)}
    return sorted(failed)


def _fail(context: Context, document_id: str, provider: str) -> int:
    what = (
        f"{registry.unknown(context.settings, provider)}. Or convert these pages with another one: "
        f"`penstock documents retry {document_id} --failed --provider NAME`"
    )
    error = UnitError(what, kind=ErrorKind.PERMANENT, code="unknown_provider")

    def act(session: Session) -> int:
        document = lock(session, document_id)
        if document is None or document.status != DocumentStatus.PROCESSING:
            return 0
        nobody, mine = Owner(f"none:0:{uuid4().hex[:6]}", ""), PAGES.c.provider == provider
        now = context.db.now()
        return len(work.refuse(session, CONVERT, document, document_id, nobody, error, context.settings, now, mine))

    failed = context.db.run(act)
    log.error("pages.without_provider", document=document_id, provider=provider, pages=failed)
    return failed

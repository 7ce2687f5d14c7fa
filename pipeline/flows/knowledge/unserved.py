"""Batches whose provider is not configured any more: their items fail, and say what to do."""

from uuid import uuid4

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from pipeline.engine import work
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.flows.knowledge.models import BATCHES, ITEMS
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.flows.knowledge.work import item as items
from pipeline.flows.knowledge.work.batch import EMBED
from pipeline.providers import registry
from pipeline.settings import LOCAL
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PORTION = 500


def fail_unserved(context: Context) -> list[str]:
    """Fail the items that wait for a provider that nobody asks any more; their ids."""
    served = [LOCAL, *own(context.settings).providers]
    # Batches of items that have ended stay as they are: they must not keep the others from being found.
    open_ = select(ITEMS.c.id).where(ITEMS.c.status == ItemStatus.EMBEDDING, ITEMS.c.deleting.is_(False))
    query = select(BATCHES.c.item_id, BATCHES.c.provider).where(
        BATCHES.c.item_id.in_(open_), EMBED.due(context.db.now()), BATCHES.c.provider.not_in(served)
    )
    with context.db.read() as session:
        found = session.execute(query.distinct().limit(PORTION)).all()
    return sorted({row.item_id for row in found if _fail(context, row.item_id, row.provider)})


def _fail(context: Context, item_id: str, provider: str) -> bool:
    what = f"{registry.unknown(context.settings, provider)}. Or give the base another one, and reprocess the item"
    if provider in registry.names(context.settings):
        what = f"{provider} makes no vectors any more: name it in PENSTOCK_KNOWLEDGE__FURTHER_PROVIDERS"
    error = UnitError(what, kind=ErrorKind.PERMANENT, code="unknown_provider")

    def act(session: Session) -> bool:
        row, now = items.lock(session, item_id), context.db.now()
        if row is None or row.status != ItemStatus.EMBEDDING:
            return False
        nobody, mine = Owner(f"none:0:{uuid4().hex[:6]}", ""), BATCHES.c.provider == provider
        return bool(work.refuse(session, EMBED, row, item_id, nobody, error, context.settings, now, mine))

    failed = context.db.run(act)
    if failed:
        log.error("item.without_provider", item=item_id, provider=provider)
    return failed

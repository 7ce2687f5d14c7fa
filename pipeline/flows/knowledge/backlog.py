"""The flow's backlog: waiting items and batches of chunks, the latest failures, and items of removed providers."""

from collections.abc import Iterator
from dataclasses import replace

import structlog
from sqlalchemy import and_, func, select

from pipeline.engine import work
from pipeline.engine.backlog import Failure, Waiting
from pipeline.engine.backlog import waiting as counted
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.transaction import Tx
from pipeline.flows.knowledge.live_settings import CONTROL, IO, embeddings_queue
from pipeline.flows.knowledge.models import BATCHES, ITEMS
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.flows.knowledge.work import item as items
from pipeline.flows.knowledge.work.admission import IN_LINE
from pipeline.flows.knowledge.work.batch import EMBED
from pipeline.flows.knowledge.work.content import READ
from pipeline.flows.knowledge.work.publication import WRITE
from pipeline.providers import registry
from pipeline.settings import LOCAL
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PORTION = 500
"""The most items that one call fails."""


def waiting(context: Context) -> Iterator[Waiting]:
    """Yield counts: items in line, items that wait to be read, items whose vectors wait to be written, and batches of
    chunks by provider."""
    embedded = and_(BATCHES.c.item_id == ITEMS.c.id, ITEMS.c.status == ItemStatus.EMBEDDING)
    with context.db.read() as session:
        in_line = session.execute(select(func.count()).select_from(ITEMS).where(IN_LINE)).scalar_one()
        waits = [
            replace(wait, queue=queue)
            for kind, queue in ((READ, IO), (WRITE, CONTROL))
            for _, wait in counted(session, kind, "items")
        ]
        chunks = counted(session, EMBED, "chunk_batches", by=BATCHES.c.provider, within=BATCHES.join(ITEMS, embedded))
        waits += [replace(wait, queue=embeddings_queue(provider)) for provider, wait in chunks]
    if in_line:
        yield Waiting("items", in_line, why="for their turn: only some are read at once")
    yield from waits


def failures(context: Context, limit: int) -> list[Failure]:
    """Return at most `limit` failed items, the last changed first; leave out items being deleted."""
    c = ITEMS.c
    failed = select(c.id, c.name, c.error, c.updated_at).where(c.status == ItemStatus.FAILED, c.deleting.is_(False))
    with context.db.read() as session:
        rows = session.execute(failed.order_by(c.updated_at.desc(), c.id.desc()).limit(limit)).all()
    return [
        Failure("knowledge", "knowledge_item", row.id, row.name, row.error or "it failed", row.updated_at)
        for row in rows
    ]


def fail_unserved(context: Context) -> list[str]:
    """Fail EMBEDDING items with due batches of a provider that is no longer configured, up to `PORTION` in one call,
    and return their ids."""
    served = [LOCAL, *own(context.settings).providers]
    # Skip batches of ended items, which stay as they are: they would fill the portion and hide the others.
    open_ = select(ITEMS.c.id).where(ITEMS.c.status == ItemStatus.EMBEDDING, ITEMS.c.deleting.is_(False))
    query = select(BATCHES.c.item_id, BATCHES.c.provider).where(
        BATCHES.c.item_id.in_(open_), EMBED.due(context.db.now()), BATCHES.c.provider.not_in(served)
    )
    with context.db.read() as session:
        rows = session.execute(query.distinct().limit(PORTION)).all()
    return sorted({row.item_id for row in rows if _fail(context, row.item_id, row.provider)})


def _fail(context: Context, item_id: str, provider: str) -> bool:
    message = f"{registry.unknown(context.settings, provider)}. Or give the base another one, and reprocess the item"
    if provider in registry.names(context.settings):
        message = f"{provider} is no longer a provider of vectors: name it in PENSTOCK_KNOWLEDGE__FURTHER_PROVIDERS"
    error = UnitError(message, kind=ErrorKind.PERMANENT, code="unknown_provider")

    def act(tx: Tx) -> bool:
        row = items.lock(tx, item_id)
        if row is None or row.status != ItemStatus.EMBEDDING:
            return False
        return bool(work.refuse(tx, EMBED, row, error, BATCHES.c.provider == provider))

    failed = context.db.run(act)
    if failed:
        log.error("item.without_provider", item=item_id, provider=provider)
    return failed

"""Items and batches of chunks that wait, and the items that failed last."""

from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy import and_, func, select

from pipeline.engine.backlog import Failure, Waiting
from pipeline.engine.backlog import waiting as counted
from pipeline.flows.knowledge.live_settings import CONTROL, IO, embeddings_queue
from pipeline.flows.knowledge.models import BATCHES, ITEMS
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.flows.knowledge.work.admission import IN_LINE
from pipeline.flows.knowledge.work.batch import EMBED
from pipeline.flows.knowledge.work.content import READ
from pipeline.flows.knowledge.work.publication import WRITE
from pipeline.storage.context import Context


def waiting(context: Context) -> Iterator[Waiting]:
    """Items in line, those that are read or written next, and batches of chunks by who makes their vectors."""
    now = context.db.now()
    embedded = and_(BATCHES.c.item_id == ITEMS.c.id, ITEMS.c.status == ItemStatus.EMBEDDING)
    with context.db.read() as session:
        in_line = session.execute(select(func.count()).select_from(ITEMS).where(IN_LINE)).scalar_one()
        found = [
            replace(one, queue=queue)
            for kind, queue in ((READ, IO), (WRITE, CONTROL))
            for _, one in counted(session, kind, "items", now)
        ]
        chunks = counted(
            session, EMBED, "chunk_batches", now, by=BATCHES.c.provider, within=BATCHES.join(ITEMS, embedded)
        )
        found += [replace(one, queue=embeddings_queue(provider)) for provider, one in chunks]
    if in_line:
        yield Waiting("items", in_line, why="for their turn: only some are read at once")
    yield from found


def failures(context: Context, limit: int) -> list[Failure]:
    """The newest items that failed."""
    c = ITEMS.c
    failed = select(c.id, c.name, c.error, c.updated_at).where(c.status == ItemStatus.FAILED, c.deleting.is_(False))
    with context.db.read() as session:
        rows = session.execute(failed.order_by(c.updated_at.desc(), c.id.desc()).limit(limit)).all()
    return [
        Failure("knowledge", "knowledge_item", row.id, row.name, row.error or "it failed", row.updated_at)
        for row in rows
    ]

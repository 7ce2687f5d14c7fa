"""Does the workers' part for knowledge, one message at a time, and reports the results."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from sqlalchemy import Table, select, update

from pipeline.engine.claims import Owner
from pipeline.engine.settled import Settled
from pipeline.flows.knowledge import deletion, intake, plan, queries
from pipeline.flows.knowledge.intake import Source
from pipeline.flows.knowledge.live_settings import embeddings_queue
from pipeline.flows.knowledge.models import BATCHES, CHUNKS, ITEMS
from pipeline.flows.knowledge.plan import DueStep, Step
from pipeline.flows.knowledge.states import ItemStatus, ItemType
from pipeline.flows.knowledge.work import batch, content, publication
from pipeline.providers import gates
from pipeline.storage.context import Context
from pipeline.storage.vectors.models import VECTORS

WORKER = "w:1:a"
MAX_ROUNDS = 2000


@dataclass
class Driver:
    """Workers of one process. `done`: the items that it completed, in their order."""

    context: Context
    worker: str = WORKER
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        gates.sync(self.context)

    def owner(self) -> Owner:
        return Owner(self.worker, uuid4().hex)

    def read(self, item_id: str) -> Settled:
        return content.read(self.context, item_id, self.owner())

    def embed(self, item_id: str, provider: str = "emb") -> Settled:
        """Handle a message for a batch of the item."""
        guarded = gates.guarded_call(self.context, embeddings_queue(provider), uuid4().hex)
        return batch.embed(self.context, item_id, provider, self.owner(), guarded)

    def write(self, item_id: str) -> Settled:
        settled = publication.publish(self.context, item_id, self.owner())
        if settled.status is ItemStatus.COMPLETED:
            self.done.append(item_id)
        return settled

    def step(self, due: DueStep) -> Settled:
        """Handle one message."""
        match due.step:
            case Step.READ:
                return self.read(due.id)
            case Step.EMBED:
                return self.embed(due.id, due.provider)
            case Step.WRITE:
                return self.write(due.id)
            case Step.REMOVE:
                deletion.remove(self.context, due.id)
                return Settled()

    def due(self) -> list[DueStep]:
        """Return all steps that are due now."""
        return plan.due_steps(self.context, list(plan.runnable(self.context, ())))

    def round(self) -> int:
        """Handle one message for each due step, and return the number of steps."""
        due = self.due()
        for due_step in due:
            self.step(due_step)
        return len(due)

    def work_off(self) -> None:
        """Handle all steps that are due now."""
        for _ in range(MAX_ROUNDS):
            if not self.round():
                return
        raise AssertionError(f"steps are still due after {MAX_ROUNDS} rounds")

    def finish(self) -> None:
        """Handle all steps, ending every wait."""
        for _ in range(MAX_ROUNDS):
            self.work_off()
            if not self.skip_waits():
                return
        raise AssertionError(f"steps still wait after {MAX_ROUNDS} rounds")

    def skip_waits(self) -> int:
        """End every wait, and return the number of waits."""
        count = 0
        with self.context.db.transaction() as session:
            for table in (ITEMS, BATCHES):
                waits = update(table).where(table.c.next_run_at.is_not(None)).values(next_run_at=None)
                count += len(session.execute(waits.returning(table.c.id)).all())
        return count

    def note(self, base_id: str, *texts: str) -> list[str]:
        """Add notes, and return their ids."""
        added = intake.add(self.context, base_id, [Source(ItemType.NOTE, text=text) for text in texts])
        assert not added.failed, added.failed
        return [item.id for item in added.created]

    def completed(self, base_id: str, text: str) -> str:
        """Add a note, and process it until it is searchable."""
        (item_id,) = self.note(base_id, text)
        self.work_off()
        assert self.status(item_id) is ItemStatus.COMPLETED, self.row(item_id)
        return item_id

    def status(self, item_id: str) -> ItemStatus:
        return queries.item(self.context, item_id).status

    def progress(self, item_id: str) -> int:
        return queries.item(self.context, item_id).progress

    def row(self, item_id: str) -> Any:
        with self.context.db.read() as session:
            return session.execute(select(ITEMS).where(ITEMS.c.id == item_id)).one_or_none()

    def change(self, item_id: str, **columns: Any) -> None:
        self.context.db.run(lambda session: session.execute(update(ITEMS).where(ITEMS.c.id == item_id).values(columns)))

    def rows(self, table: Table, item_id: str = "") -> list[Any]:
        query = select(table).order_by(*table.primary_key.columns)
        with self.context.db.read() as session:
            return list(session.execute(query.where(table.c.item_id == item_id) if item_id else query))

    def texts(self, item_id: str) -> list[str]:
        """Return the searchable chunks of an item."""
        return self.texts_of(self.context, item_id)

    @staticmethod
    def texts_of(context: Context, item_id: str) -> list[str]:
        """Return the searchable chunks of an item, through any driver."""
        return [chunk.text for chunk in queries.chunks(context, item_id, limit=100_000)]


def long_text(name: str, paragraphs: int) -> str:
    """Return a note of this many chunks of 32 tokens."""
    return "\n\n".join(f"{name} {number} " + f"word{number} " * 12 for number in range(paragraphs))


def published(context: Context, names: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """Return all searchable rows without ids and times: chunks with their vectors, by the items' names."""
    query = (
        select(
            ITEMS.c.name,
            ITEMS.c.status,
            ITEMS.c.progress,
            ITEMS.c.chunk_count,
            CHUNKS.c.number,
            CHUNKS.c.text,
            CHUNKS.c.heading,
            CHUNKS.c.page,
            CHUNKS.c.start,
            CHUNKS.c.end,
            CHUNKS.c.digest,
            VECTORS.c.model,
            VECTORS.c.dims,
            VECTORS.c.data,
        )
        .join(CHUNKS, (CHUNKS.c.item_id == ITEMS.c.id) & (CHUNKS.c.generation == ITEMS.c.generation))
        .join(VECTORS, (VECTORS.c.item_id == CHUNKS.c.id) & (VECTORS.c.kind == "kb:" + CHUNKS.c.base_id))
        .order_by(ITEMS.c.name, ITEMS.c.id, CHUNKS.c.number)
    )
    with context.db.read() as session:
        return [tuple(row) for row in session.execute(query.where(ITEMS.c.name.in_(names)) if names else query)]

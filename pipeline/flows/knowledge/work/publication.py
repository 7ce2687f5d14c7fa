"""EMBEDDING → COMPLETED: writes an item's vectors, then replaces its old chunks by the new ones in one step.

Rules: docs/sources/knowledge.md#reprocessing. Searches use the old chunks until all vectors are written.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog
from sqlalchemy import ColumnElement, and_, delete, select, update

from pipeline.engine import work
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.retry import Policy
from pipeline.engine.settled import Settled
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes, Outcome, Work
from pipeline.flows.knowledge import live_settings
from pipeline.flows.knowledge.models import BATCHES, CHUNKS, FULL_TEXT, ITEMS
from pipeline.flows.knowledge.rules.progress import embed_progress
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import FLOW, ITEM, ItemEvent, ItemStatus
from pipeline.flows.knowledge.views import heading_of
from pipeline.flows.knowledge.work import admission
from pipeline.flows.knowledge.work import item as items
from pipeline.flows.knowledge.work.content import ClaimLost
from pipeline.flows.knowledge.work.known import forget, kind_of
from pipeline.settings import Settings
from pipeline.storage import vectors
from pipeline.storage.context import Context
from pipeline.storage.fulltext import Text

log = structlog.get_logger(__name__)
Result = TypeVar("Result")
MOST_AT_ONCE = 200
"""Chunks whose vectors one transaction writes: docs/sources/knowledge.md#batches."""
_WRITABLE = and_(ITEMS.c.batches_left == 0, ITEMS.c.batches > 0)


def _policy(settings: Settings) -> Policy:
    return Policy(tuple(own(settings).write_backoff_s) or (0.0,))


WRITE = Work(
    "write",
    ITEMS,
    ITEM,
    claim=ItemEvent.WRITE,
    done=ItemEvent.COMPLETE,
    fail=ItemEvent.FAIL,
    wait=ItemEvent.REQUEUE_WRITE,
    give_back=ItemEvent.REQUEUE_WRITE,
    scope=ITEMS.c.id,
    lock=items.lock,
    order=(ITEMS.c.position,),
    policy=_policy,
    lease_s=items.write_lease_s,
    lost="the worker was lost while it wrote the vectors of this",
    after=lambda tx, row, changes: items.make_room(tx, row, changes, ended=bool(changes.done or changes.failed)),
    where=(_WRITABLE,),
)


def publish(context: Context, item_id: str, owner: Owner) -> Settled:
    """Write the item's vectors and complete it, if that is due and the limit of writers allows it. Failures go to the
    row."""
    row = context.db.run(lambda tx: _claim(tx, item_id, owner))
    if row is None:
        return Settled()
    try:
        _publish(context, row)
    except ClaimLost:
        log.info("item.discarded", item=item_id)
        return Settled()
    except Exception as raised:  # any failure must reach the row
        log.warning("item.not_written", item=item_id, exc_info=raised)
        error = items.as_unit_error(raised, lambda text: UnitError(text, kind=ErrorKind.TRANSIENT))
        return _fail(context, Outcome(row, error))
    log.info("item.completed", item=item_id, base=row.base_id, chunks=row.chunk_count)
    return Settled(1, status=ItemStatus.COMPLETED)


def _claim(tx: Tx, item_id: str, owner: Owner) -> Any | None:
    items.take_turn(tx)
    item = items.lock(tx, item_id)
    if item is None:
        return None
    work.give_back_earlier(tx, WRITE, item, owner)
    limits = live_settings.in_force_in(tx)
    if item_id not in admission.waiting_to_write(tx, limits, WRITE.due(tx.now)):
        tx.launch(FLOW, item_id)  # another step may be due
        return None
    return next(iter(work.claim(tx, WRITE, item, owner)), None)


def _publish(context: Context, row: Any) -> None:
    """Write the vectors in small steps, make the new chunks searchable, and remove the old ones, again in small steps.

    Each step commits, and may run twice: a worker that starts the publication again completes it. Raises `ClaimLost`.
    """

    def step(act: Callable[[Tx], Result]) -> Result:
        def held(tx: Tx) -> Result:
            current = items.lock(tx, row.id)
            if current is None or current.claim_id != row.claim_id or not work.renew(tx, WRITE, row):
                raise ClaimLost
            return act(tx)

        return context.db.run(held)

    with context.db.read() as session:
        numbers = session.execute(
            select(BATCHES.c.number, BATCHES.c.size).where(BATCHES.c.item_id == row.id).order_by(BATCHES.c.number)
        ).all()
    steps: list[list[int]] = [[]]
    chunks = 0
    for batch in numbers:
        if steps[-1] and chunks + batch.size > MOST_AT_ONCE:
            steps.append([])
            chunks = 0
        steps[-1].append(batch.number)
        chunks += batch.size
    for number, statements in enumerate(steps, start=1):
        step(partial(_write, row=row, numbers=statements, share=number / len(steps)))
    step(partial(_make_searchable, row=row))
    while step(partial(_forget_old, row=row)):
        pass
    for statements in steps:
        step(lambda tx, statements=statements: tx.execute(delete(BATCHES).where(_of(row, statements))))  # type: ignore[misc]
    values = {"progress": 100, "attempts": 0, "finished_at": context.db.now(), "batches": 0}
    if not context.db.run(lambda tx: _settle(tx, Outcome(row, values=values))):
        raise ClaimLost


def _make_searchable(tx: Tx, *, row: Any) -> None:
    """Make the new chunks searchable in place of the old ones."""
    values = {"generation": row.building, "published_space": row.space, "updated_at": tx.now}
    tx.execute(update(ITEMS).where(ITEMS.c.id == row.id).values(**values))


def _forget_old(tx: Tx, *, row: Any) -> int:
    """Delete up to `MOST_AT_ONCE` of the item's old chunks, and return their number."""
    others = and_(CHUNKS.c.item_id == row.id, CHUNKS.c.generation != row.building)
    ids = tx.execute(select(CHUNKS.c.id).where(others).limit(MOST_AT_ONCE)).scalars().all()
    forget(tx, row.base_id, CHUNKS.c.id.in_(ids))
    return len(ids)


def _of(row: Any, numbers: Sequence[int]) -> ColumnElement[bool]:
    return and_(BATCHES.c.item_id == row.id, BATCHES.c.number.in_(numbers))


def _write(tx: Tx, *, row: Any, numbers: Sequence[int], share: float) -> None:
    """Put the vectors and the full text of these batches' chunks into the indexes of the search. `share`: of the item's
    vectors, how many are written then."""
    batches = tx.execute(select(BATCHES.c.number, BATCHES.c.size, BATCHES.c.vectors).where(_of(row, numbers)))
    by_batch = {batch.number: vectors.unpack(batch.vectors, batch.size) for batch in batches}
    chunks = tx.execute(
        select(CHUNKS)
        .where(CHUNKS.c.item_id == row.id, CHUNKS.c.generation == row.building, CHUNKS.c.batch.in_(numbers))
        .order_by(CHUNKS.c.batch, CHUNKS.c.number)
    ).all()
    rows, texts, seen = [], [], dict.fromkeys(by_batch, 0)
    for chunk in chunks:
        rows.append((chunk.id, by_batch[chunk.batch][seen[chunk.batch]]))
        seen[chunk.batch] += 1
        head = " ".join([row.title, *heading_of(chunk.heading)])
        texts.append(Text(chunk.id, head=head, apps=row.base_id, body=chunk.text))
    vectors.upsert(tx, kind_of(row.base_id), row.space, rows)
    FULL_TEXT.put(tx, texts)
    percent = embed_progress(own(tx.settings).read_weight, row.batches, 0, share)
    further = update(ITEMS).where(ITEMS.c.id == row.id, ITEMS.c.progress < percent).values(progress=percent)
    if tx.execute(further.returning(ITEMS.c.id)).first():
        tx.announce(FLOW, row.id)


def _settle(tx: Tx, ended: Outcome) -> Changes:
    row = items.lock(tx, ended.unit.id)
    return work.settle(tx, WRITE, row, ended) if row else Changes()


def _fail(context: Context, ended: Outcome) -> Settled:
    changes = context.db.run(lambda tx: _settle(tx, ended))
    status = ItemStatus.FAILED if changes.failed else None
    return Settled(retry_in_s=changes.retry_in_s, status=status)

"""EMBEDDING → COMPLETED: an item's vectors are written, and its new chunks take the place of the old ones at once.

Source 003, "批次 embedding 与写入" and "reprocess 语义". Until all are written the old ones are searched.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import structlog
from sqlalchemy import ColumnElement, and_, delete, select, update
from sqlalchemy.orm import Session

from pipeline.engine import work
from pipeline.engine.claims import Claim, Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.retry import Policy
from pipeline.engine.settled import Settled
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes, Outcome, Work
from pipeline.flows.knowledge import live_settings
from pipeline.flows.knowledge.models import BATCHES, CHUNKS, FULL_TEXT, ITEMS
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
MOST_AT_ONCE = 500
"""Chunks whose vectors one transaction writes: on SQLite, all other writers wait until it ends. Source 003,
"异常与上限", allows 50,000."""
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
    wait=ItemEvent.WRITE_AGAIN,
    give_back=ItemEvent.WRITE_AGAIN,
    scope=ITEMS.c.id,
    lock=items.lock,
    order=(ITEMS.c.position,),
    policy=_policy,
    lease_s=items.write_lease_s,
    lost="the worker was lost while it wrote the vectors of this",
    after=lambda session, row, changes, _: items.make_room(
        session, row, changes, ended=bool(changes.done or changes.failed)
    ),
    where=(_WRITABLE,),
)


def publish(context: Context, item_id: str, owner: Owner) -> Settled:
    """Write the item's vectors and complete it, if that is due and there is room for one more writer."""
    claimed = context.db.run(lambda session: _claim(session, context, item_id, owner))
    if claimed is None:
        return Settled()
    row, claim = claimed
    try:
        _publish(context, row, claim)
    except ClaimLost:
        log.info("item.discarded", item=item_id)
        return Settled()
    except Exception as raised:  # whatever it is, it must end up on the row
        log.warning("item.not_written", item=item_id, exc_info=raised)
        error = items.as_unit_error(raised, lambda text: UnitError(text, kind=ErrorKind.TRANSIENT))
        return _fail(context, Outcome(row.id, row.attempts, claim, error))
    log.info("item.completed", item=item_id, base=row.base_id, chunks=row.chunk_count)
    return Settled(1, status=ItemStatus.COMPLETED)


def _claim(session: Tx, context: Context, item_id: str, owner: Owner) -> tuple[Any, Claim] | None:
    items.take_turn(session)
    row, now, settings = items.lock(session, item_id), context.db.now(), context.settings
    if row is None:
        return None
    work.give_back_earlier(session, WRITE, row, item_id, owner, settings, now)
    limits = live_settings.in_force_in(session, settings)
    if item_id not in admission.waiting_to_write(session, limits, WRITE.due(now)):
        session.launch(FLOW, item_id)  # something else may be due
        return None
    mine = work.new_claim(WRITE, owner, settings, now)
    rows = work.claim(session, WRITE, item_id, mine, now)
    return (rows[0], mine) if rows else None


def _publish(context: Context, row: Any, claim: Claim) -> None:
    """Write the vectors in small steps, make the new chunks searchable, and remove the old ones, again in small steps.

    Each step commits, and may run twice: a worker that starts the publication again completes it. Raises `ClaimLost`.
    """

    def step(act: Callable[[Session, datetime], Result]) -> Result:
        return context.db.run(lambda session: act(session, _held(session, context, row, claim)))

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
    for some in steps:
        step(partial(_write, row=row, numbers=some))
    step(partial(_appear, row=row))
    while step(partial(_forget_old, row=row)):
        pass
    for some in steps:
        step(lambda session, _now, some=some: session.execute(delete(BATCHES).where(_of(row, some))))  # type: ignore[misc]
    values = {"progress": 100, "attempts": 0, "finished_at": context.db.now(), "batches": 0}
    done = Outcome(row.id, row.attempts, claim, values=values)
    if not context.db.run(lambda session: _settle(session, context, done)):
        raise ClaimLost


def _held(session: Session, context: Context, row: Any, claim: Claim) -> datetime:
    """Lock the item and renew its claim; the time. Raises `ClaimLost`."""
    current, now = items.lock(session, row.id), context.db.now()
    until = now + timedelta(seconds=items.write_lease_s(context.settings))
    if current is None or current.claim_id != claim.id or not work.renew(session, WRITE, row.id, claim, until):
        raise ClaimLost
    return now


def _appear(session: Session, now: datetime, *, row: Any) -> None:
    """Make the new chunks searchable in place of the old ones."""
    values = {"generation": row.building, "published_space": row.space, "updated_at": now}
    session.execute(update(ITEMS).where(ITEMS.c.id == row.id).values(**values))


def _forget_old(session: Session, _now: datetime, *, row: Any) -> int:
    """Delete up to `MOST_AT_ONCE` of the item's old chunks. Returns their number."""
    others = and_(CHUNKS.c.item_id == row.id, CHUNKS.c.generation != row.building)
    ids = session.execute(select(CHUNKS.c.id).where(others).limit(MOST_AT_ONCE)).scalars().all()
    forget(session, row.base_id, CHUNKS.c.id.in_(ids))
    return len(ids)


def _of(row: Any, numbers: Sequence[int]) -> ColumnElement[bool]:
    return and_(BATCHES.c.item_id == row.id, BATCHES.c.number.in_(numbers))


def _write(session: Session, now: datetime, *, row: Any, numbers: Sequence[int]) -> None:
    """Write the vectors and the texts of some batches."""
    found = session.execute(select(BATCHES.c.number, BATCHES.c.size, BATCHES.c.vectors).where(_of(row, numbers)))
    made = {batch.number: vectors.unpack(batch.vectors, batch.size) for batch in found}
    chunks = session.execute(
        select(CHUNKS)
        .where(CHUNKS.c.item_id == row.id, CHUNKS.c.generation == row.building, CHUNKS.c.batch.in_(numbers))
        .order_by(CHUNKS.c.batch, CHUNKS.c.number)
    ).all()
    rows, texts, seen = [], [], dict.fromkeys(made, 0)
    for chunk in chunks:
        rows.append((chunk.id, made[chunk.batch][seen[chunk.batch]]))
        seen[chunk.batch] += 1
        head = " ".join([row.title, *heading_of(chunk.heading)])
        texts.append(Text(chunk.id, head=head, apps=row.base_id, body=chunk.text))
    vectors.upsert(session, kind_of(row.base_id), row.space, rows, now)
    FULL_TEXT.put(session, texts)


def _settle(session: Session, context: Context, ended: Outcome) -> Changes:
    row = items.lock(session, ended.id)
    return work.settle(session, WRITE, row, [ended], context.settings, context.db.now()) if row else Changes()


def _fail(context: Context, ended: Outcome) -> Settled:
    changes = context.db.run(lambda session: _settle(session, context, ended))
    status = ItemStatus.FAILED if changes.failed else None
    return Settled(retry_in_s=changes.retry_in_s, status=status)

"""EMBEDDING: makes the vectors of one batch in one call, and stores them on the batch until publication."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog
from redis import RedisError
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from pipeline.engine import traces, work
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.kept_answers import Subject
from pipeline.engine.retry import Policy
from pipeline.engine.settled import Settled
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes, Outcome, Work
from pipeline.flows.knowledge.models import BATCHES, CHUNKS, ITEMS
from pipeline.flows.knowledge.rules.passage import embedded_text
from pipeline.flows.knowledge.rules.progress import embed_progress
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import BATCH, FLOW, ITEM, LINE, BatchEvent, BatchStatus, ItemEvent, ItemStatus
from pipeline.flows.knowledge.views import heading_of
from pipeline.flows.knowledge.work import item as items
from pipeline.providers import registry
from pipeline.providers.traced_call import Tracer
from pipeline.settings import LOCAL, Settings
from pipeline.storage import vectors
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)


def _policy(settings: Settings) -> Policy:
    section = own(settings)
    return Policy(tuple(min(wait, section.longest_wait_s) for wait in section.backoff_s))


def _count(tx: Tx, row: Any, changes: Changes) -> None:
    """Subtract done batches from the item's count; a failed one fails it. Rule: docs/sources/knowledge.md#batches.

    Only for an EMBEDDING item. Otherwise the item was cancelled, and the batch keeps its vectors for the next reading.
    """
    if row.status != ItemStatus.EMBEDDING:
        return
    is_item = ITEMS.c.id == row.id
    if changes.failed:
        ended = {"error": changes.error, "finished_at": tx.now, "admitted_at": None, "updated_at": tx.now}
        ITEM.move(tx, ITEMS, ItemEvent.FAIL, is_item, **ended)
        tx.launch(FLOW, LINE)
    elif changes.done:
        batches_left = row.batches_left - len(changes.done)
        tx.execute(update(ITEMS).where(is_item).values(batches_left=batches_left, updated_at=tx.now))


EMBED = Work(
    "batch",
    BATCHES,
    BATCH,
    claim=BatchEvent.CLAIM,
    done=BatchEvent.DONE,
    fail=BatchEvent.FAIL,
    wait=BatchEvent.WAIT,
    give_back=BatchEvent.GIVE_BACK,
    scope=BATCHES.c.item_id,
    lock=items.lock,
    order=(BATCHES.c.releases, BATCHES.c.number),
    policy=_policy,
    lease_s=items.call_lease_s,
    lost="the worker was lost while it embedded these chunks",
    after=_count,
)
"""docs/sources/knowledge.md#retries: 2–3 attempts, 500 ms × 2 up to 10 s, Retry-After first."""


@dataclass(frozen=True)
class Claimed:
    """A claimed batch with its item and the texts of its chunks."""

    row: Any
    item: Any
    texts: Sequence[str]


def embed(context: Context, item_id: str, provider: str, owner: Owner, guarded: GuardedCall | None) -> Settled:
    """Make and store the vectors of the item's next batch for this provider, if one waits.

    Failures go to the row. Leaves the gate of `guarded` in any case.
    """
    tracer = Tracer(context, guarded)
    try:
        claimed = context.db.run(lambda tx: _claim(tx, item_id, provider, owner))
        if claimed is None:
            return Settled()
        try:
            packed = _vectors(context, tracer, claimed)
        except Exception as raised:  # any failure must reach the row
            if not isinstance(raised, UnitError):
                log.exception("batch.not_embedded", item=item_id)
            error = items.as_unit_error(raised, lambda text: UnitError(text, kind=ErrorKind.PERMANENT))
            return _settle(context, Outcome(claimed.row, error), tracer)
        return _settle(context, Outcome(claimed.row, values={"vectors": packed}), tracer)
    finally:
        # Leave even without a batch: a slot that stays taken would keep others out.
        if guarded is not None:
            with suppress(RedisError):
                guarded.leave()


def _claim(tx: Tx, item_id: str, provider: str, owner: Owner) -> Claimed | None:
    item = items.lock(tx, item_id)
    if item is None or item.status != ItemStatus.EMBEDDING:
        return None
    row = work.claim_next(tx, EMBED, item, owner, BATCHES.c.provider == provider)
    if row is None:
        return None
    chunks = tx.execute(
        select(CHUNKS.c.heading, CHUNKS.c.text)
        .where(CHUNKS.c.item_id == item_id, CHUNKS.c.generation == row.generation, CHUNKS.c.batch == row.number)
        .order_by(CHUNKS.c.number)
    ).all()
    return Claimed(row, item, [embedded_text(heading_of(chunk.heading), chunk.text) for chunk in chunks])


def _vectors(context: Context, tracer: Tracer, claimed: Claimed) -> bytes:
    """Make the batch's vectors, and return them as bytes to store. Raises `UnitError`, or `UserError` for an unusable
    provider."""
    texts, provider = claimed.texts, claimed.row.provider
    model = claimed.item.space.partition(":")[2]
    maker = registry.embeddings(context.settings, provider, "" if provider == LOCAL else model)
    if provider == LOCAL:
        return vectors.pack(maker.embed(texts).vectors)
    subject = Subject(FLOW, claimed.row.item_id, str(claimed.row.number), claimed.row.claim_id)
    answers = tracer.call(
        subject, "embeddings", "embed_chunks", maker.name, maker.model, texts, lambda: maker.embed(texts)
    ).vectors
    if len(answers) != len(texts):
        raise UnitError(
            f"{len(answers)} vectors came for {len(texts)} texts", kind=ErrorKind.TRANSIENT, code="bad_reply"
        )
    try:
        packed = vectors.pack(answers)
    except ValueError as error:
        raise UnitError(str(error), kind=ErrorKind.TRANSIENT, code="bad_reply") from error
    return packed


def _checked(session: Session, row: Any, ended: Outcome) -> Outcome:
    """Return the outcome, or a failure if its vectors differ in length from the locked item's other vectors."""
    packed: bytes | None = ended.values.get("vectors")
    others = select(func.length(BATCHES.c.vectors), BATCHES.c.size).where(
        BATCHES.c.item_id == row.item_id, BATCHES.c.generation == row.generation, BATCHES.c.status == BatchStatus.DONE
    )
    other = session.execute(others.limit(1)).one_or_none() if packed else None
    if packed is None or other is None or len(packed) * other.size == other[0] * row.size:
        return ended
    message = (
        f"a vector has {len(packed) // (4 * row.size)} numbers, others of this item have "
        f"{other[0] // (4 * other.size)}: did the model change? Delete the item, and add it again"
    )
    return replace(ended, error=UnitError(message, kind=ErrorKind.PERMANENT, code="bad_reply"), values={})


def _settle(context: Context, ended: Outcome, tracer: Tracer) -> Settled:
    row: Any = ended.unit

    def act(tx: Tx) -> Settled:
        item = items.lock(tx, row.item_id)
        traces.record(tx, tracer.trace, deleted=item is None)
        if item is None:
            return Settled()
        changes = work.settle(tx, EMBED, item, _checked(tx, row, ended))
        if not changes or item.status != ItemStatus.EMBEDDING:
            return Settled()
        batches_left = item.batches_left - len(changes.done)
        percent = embed_progress(own(tx.settings).read_weight, item.batches, batches_left)
        if changes.done and percent > item.progress:
            tx.execute(update(ITEMS).where(ITEMS.c.id == item.id).values(progress=percent))
            tx.announce(FLOW, item.id)
        tx.wake_in(FLOW, changes.retry_in_s)
        return Settled(
            len(changes.done),
            requeue=batches_left > 0 and not changes.failed,
            retry_in_s=changes.retry_in_s,
            status=ItemStatus.FAILED if changes.failed else ItemStatus.EMBEDDING,
        )

    return context.db.run(act)

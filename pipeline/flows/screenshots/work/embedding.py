"""Makes vectors of nodes, one portion a message. Rules: docs/sources/screenshots.md#nodes."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog
from redis import RedisError
from sqlalchemy import String, literal_column, select
from sqlalchemy.orm import Session

from pipeline.engine import traces
from pipeline.engine import work as units
from pipeline.engine.claims import Owner, left_behind
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.kept_answers import Subject
from pipeline.engine.settled import Settled
from pipeline.engine.traces import message_of
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes, Outcome, Scope
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import EMBEDDINGS, NODES
from pipeline.flows.screenshots.scopes import FLOW
from pipeline.flows.screenshots.states import EMBEDDING, WorkEvent, WorkStatus
from pipeline.flows.screenshots.work import batch, retry
from pipeline.providers import registry
from pipeline.providers.protocols import Embeddings
from pipeline.providers.traced_call import Tracer
from pipeline.settings import LOCAL, Settings
from pipeline.storage import vectors
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
SCOPE = "vectors"
"""The one scope of all vectors."""
ALL = Scope(SCOPE)
MAX_CHARS = 2000
PORTION = 64
"""Most nodes in one call."""
WAIT_S = 15.0
NOT_OF_THE_TEXT = {"auth", "forbidden", "not_found", "no_model"}
"""Errors that only the operator can fix: no node becomes a dead letter because of them."""


def trace_unit(node_id: int) -> str:
    """Return the name of the vector of a node in traces and accounts, below the node's batch."""
    return f"vector {node_id}"


def lock(session: Session, _scope: str = "") -> Scope:
    """Lock all claimed vectors in the order of ids, so that transactions settle them one after another."""
    held = select(EMBEDDINGS.c.id).where(EMBEDDINGS.c.claim_id.is_not(None)).order_by(EMBEDDINGS.c.id)
    session.execute(held.with_for_update()).all()
    return ALL


WORK = batch.kind("vector", EMBEDDINGS, EMBEDDING, literal_column(f"'{SCOPE}'", String()), lock, (EMBEDDINGS.c.id,))


@dataclass(frozen=True)
class Portion:
    """Claimed nodes for one call, with their texts."""

    rows: Sequence[Any] = field(repr=False)
    texts: Sequence[str] = field(repr=False)
    of: tuple[tuple[str, str], ...] = ()
    """(batch, account's unit) of each node."""

    def ended(self, error: UnitError | None = None, **event: Any) -> list[Outcome]:
        """Return the same outcome for each node."""
        return [Outcome(row, error, **event) for row in self.rows]


def embeddings(settings: Settings) -> Embeddings:
    """Return the configured embeddings provider, or lexical vectors without one. Raises `UserError`."""
    own = settings.screenshots
    return registry.embeddings(settings, own.embeddings_provider or LOCAL, own.embeddings_model)


def space_of(settings: Settings) -> str:
    """Return provider and model of new vectors. Only vectors of one space are comparable."""
    maker = embeddings(settings)
    return f"{maker.name}:{maker.model}"


def waiting(context: Context) -> bool:
    """Whether a node waits for its vector now."""
    query = select(EMBEDDINGS.c.id).where(WORK.due(context.db.now())).limit(1)
    with context.db.read() as session:
        return session.execute(query).first() is not None


def claim(context: Context, owner: Owner, portion: int = PORTION) -> Portion | None:
    """Claim the next nodes that wait for a vector, the oldest first; None if no node waits."""

    def act(tx: Tx) -> Portion | None:
        if left_behind(tx, EMBEDDINGS, owner):
            units.give_back_earlier(tx, WORK, lock(tx), owner)
        rows = units.claim(tx, WORK, ALL, owner, limit=portion)
        by_id = {row.id: row for row in tx.execute(select(NODES).where(NODES.c.id.in_([row.id for row in rows])))}
        of = tuple((str(by_id[row.id].batch_id or ""), trace_unit(row.id)) for row in rows)
        return Portion(rows, [_text_of(by_id[row.id]) for row in rows], of) if rows else None

    return context.db.run(act)


def _text_of(node: Any) -> str:
    content = nodes.content_of(node)
    names = ", ".join(entity.name for entity in content.entities)
    return "\n".join(filter(None, [content.title, content.summary, ", ".join(content.keywords), names]))[:MAX_CHARS]


def settle(
    context: Context, portion: Portion, new: Sequence[Sequence[float]], trace: dict[str, Any] | None = None
) -> int:
    """Store the vectors `new` of the portion's nodes, in the same order, except of changed texts and deleted nodes;
    return how many it stored."""
    space = space_of(context.settings)

    def act(tx: Tx) -> int:
        changes = _settle(tx, portion.ended(), trace)
        kept = [(row.id, vector) for row, vector in zip(portion.rows, new, strict=True) if row.id in changes.done]
        return vectors.upsert(tx, nodes.KIND, space, kept)

    return context.db.run(act)


def fail(context: Context, portion: Portion, error: UnitError, trace: dict[str, Any] | None = None) -> Settled:
    """Settle a failed portion. It waits without counting an attempt if the provider or the operator must fix the error.

    One bad text must not block the others: the next message tries half of the portion, and so on, until the bad text
    fails alone and becomes a dead letter. After a good portion, the size doubles.
    """
    size, settled = len(portion.rows), Settled(requeue=True, size=PORTION)
    if error.kind is not ErrorKind.PERMANENT or error.code in NOT_OF_THE_TEXT:
        wait_s = WAIT_S if error.retry_after_s is None else error.retry_after_s
        settled = Settled(retry_in_s=wait_s)
    elif size > 1:
        settled = Settled(requeue=True, size=size // 2)

    def act(tx: Tx) -> None:
        tx.wake_in(FLOW, settled.retry_in_s)
        waits = tx.now + timedelta(seconds=settled.retry_in_s) if settled.retry_in_s is not None else None
        if waits is None and size == 1:
            outcomes = portion.ended(error)
        else:
            # The fault may be the provider's: count no attempt.
            outcomes = [_back(row, error, next_run_at=waits) for row in portion.rows]
        _settle(tx, outcomes, trace)

    context.db.run(act)
    return settled


def _back(row: Any, error: UnitError, **values: Any) -> Outcome:
    values |= {"attempts": row.attempts - 1, "error": message_of(error)}
    return Outcome(row, event=WorkEvent.GIVE_BACK, values=values)


def _settle(tx: Tx, outcomes: Sequence[Outcome], trace: dict[str, Any] | None) -> Changes:
    scope = lock(tx)
    traces.record(tx, trace)
    return units.settle(tx, WORK, scope, *outcomes)


def embed(context: Context, owner: Owner, guarded: GuardedCall | None, portion: int = PORTION) -> Settled:
    """Make and store the vectors of up to `portion` waiting nodes. Failures go to the rows.

    `Settled.size`: the portion of the next message, if one follows.
    """
    tracer = Tracer(context, guarded)
    try:
        wanted = claim(context, owner, portion)
        if wanted is None:
            return Settled()
        try:
            new = _vectors(context, tracer, wanted)
        except Exception as raised:  # noqa: BLE001  # the rows record any error
            error = retry.as_unit_error(raised)
            log.warning("nodes.not_embedded", nodes=len(wanted.rows), kind=str(error.kind), error=str(error))
            return fail(context, wanted, error, tracer.trace_of(raised))
        done = settle(context, wanted, new, tracer.trace)
        return Settled(done, requeue=waiting(context), size=min(PORTION, 2 * portion), status=WorkStatus.SUCCEEDED)
    finally:
        # Without work too: an unused slot would block other messages.
        if guarded is not None:
            with suppress(RedisError):
                guarded.leave()


def _vectors(context: Context, tracer: Tracer, wanted: Portion) -> list[list[float]]:
    maker, texts = embeddings(context.settings), wanted.texts
    if not context.settings.screenshots.embeddings_provider:
        return maker.embed(texts).vectors
    batch.outlast(context, WORK, wanted.rows, maker.name)
    subject = Subject(FLOW, "", SCOPE, wanted.rows[0].claim_id, wanted.of)
    new = tracer.call(
        subject, "embeddings", "embed_nodes", maker.name, maker.model, texts, lambda: maker.embed(texts)
    ).vectors
    if len(new) != len(texts):
        # Permanent, so that the next call has fewer texts: some services take one text a call.
        message = f"the provider returned {len(new)} vectors for {len(texts)} texts"
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="bad_reply")
    return new

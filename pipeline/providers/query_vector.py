"""Compute the vector of a search's words: on this machine, or by a provider in its turn at the gate."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine import accounts, traces
from pipeline.engine.accounts import CALLER, Part
from pipeline.engine.kept_answers import Subject
from pipeline.engine.transaction import Tx
from pipeline.providers import call_cost, gates
from pipeline.providers.protocols import Embeddings
from pipeline.providers.traced_call import Tracer, in_turn
from pipeline.storage.context import Context

OPERATION = "embed_query"
RECORD_S = 2.0
"""How long a search waits for a busy database to record its call."""


def query_vector(
    context: Context, flow: str, queue: str, maker: Embeddings, words: str, patience_s: float
) -> list[float]:
    """Return the vector of `words`, from one call through the gate of `queue`, recorded and charged as a search of
    `flow`.

    Waits while the gate is full or closed; raises `GateClosed` as soon as the next wait would exceed `patience_s`
    seconds in all. Raises `UnitError`, `RedisError`, and `OverCap` if the caller cannot pay.
    """
    with _reserved(context, flow, maker) as of:
        guarded = gates.guarded_call(context, queue, f"search:{uuid4().hex}")
        gates.sync(context)
        tracer, subject = Tracer(context, guarded), Subject(flow, traces.SEARCH, str(CALLER.get() or 0), of=of)
        try:
            result = in_turn(
                lambda: tracer.call(
                    subject, "embeddings", OPERATION, maker.name, maker.model, [], lambda: maker.embed([words])
                ),
                patience_s,
            )
        finally:
            if guarded is not None:
                with suppress(RedisError):
                    guarded.leave()
            with suppress(SQLAlchemyError):  # a sweep records it later; do not delay the search
                context.db.run(lambda tx: traces.record(tx, tracer.trace), patience_s=RECORD_S)
        return result.vectors[0]


@contextmanager
def _reserved(context: Context, flow: str, maker: Embeddings) -> Iterator[tuple[tuple[str, str], ...]]:
    """Reserve money for one call on the current caller's account until the block ends; yield the (item, unit) that
    pays, if any. Raises `OverCap`."""
    search = uuid4().hex

    def admit(tx: Tx) -> bool:
        each = call_cost.of_call(tx, maker.name, maker.model, OPERATION)
        if each:
            hold, lasts_s = {search: [Part(1, each)]}, accounts.hold_s(context.settings)
            accounts.admit(tx, flow, hold, lasts_s=lasts_s)
        return bool(each)

    if not (CALLER.get() and context.db.run(admit, patience_s=RECORD_S)):
        yield ()
        return
    try:
        yield ((search, ""),)
    finally:
        with suppress(SQLAlchemyError):  # the reservation expires
            context.db.run(lambda tx: accounts.close(tx, flow, search), patience_s=RECORD_S)

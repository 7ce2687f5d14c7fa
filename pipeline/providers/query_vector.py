"""The vector of a search's words: made here, or asked of the provider in its turn at the gate."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine import accounts, traces
from pipeline.engine.accounts import CALLER, Part
from pipeline.engine.guarded_call import GateClosed
from pipeline.engine.kept_answers import Subject
from pipeline.engine.transaction import Tx
from pipeline.providers import call_cost, gates
from pipeline.providers.protocols import Embeddings
from pipeline.providers.traced_call import Tracer
from pipeline.storage.context import Context

OPERATION = "embed_query"
RECORD_S = 2.0
"""How long a search waits for a busy database that is to record its call."""


def query_vector(
    context: Context, flow: str, queue: str, maker: Embeddings, words: str, patience_s: float
) -> list[float]:
    """The vector of `words`, by one call through the gate of `queue`, which is traced as a search of `flow`.

    Waits up to `patience_s` seconds while the gate is full, then raises `GateClosed`. Raises `UnitError`, `RedisError`.
    """
    with _reserved(context, flow, maker) as of:
        guarded = gates.guarded_call(context, queue, f"search:{uuid4().hex}")
        gates.sync(context)
        tracer, subject = Tracer(context, guarded), Subject(flow, traces.SEARCH, str(CALLER.get() or 0), of=of)
        deadline = time.monotonic() + patience_s
        while True:
            try:
                made = tracer.call(
                    subject, "embeddings", OPERATION, maker.name, maker.model, [], lambda: maker.embed([words])
                )
            except GateClosed as closed:
                wait_s = closed.retry_after_s or 1.0
                if time.monotonic() + wait_s > deadline:
                    raise
                time.sleep(wait_s)
            else:
                return made.vectors[0]
            finally:
                if guarded is not None:
                    with suppress(RedisError):
                        guarded.leave()
                with suppress(SQLAlchemyError):  # a sweep records it later: do not delay the search for it
                    context.db.run(lambda tx: traces.record(tx, tracer.trace), patience_s=RECORD_S)


@contextmanager
def _reserved(context: Context, flow: str, maker: Embeddings) -> Iterator[tuple[tuple[str, str], ...]]:
    """Money for one call, on the current caller's account: what the call is for. Raises `OverCap`."""
    search = uuid4().hex

    def admit(tx: Tx) -> bool:
        each = call_cost.of_call(tx, maker.name, maker.model, OPERATION)
        if each:
            wanted, lasts_s = {search: [Part(1, each)]}, accounts.hold_s(context.settings)
            accounts.admit(tx, flow, wanted, lasts_s=lasts_s)
        return bool(each)

    if not (CALLER.get() and context.db.run(admit, patience_s=RECORD_S)):
        yield ()
        return
    try:
        yield ((search, ""),)
    finally:
        with suppress(SQLAlchemyError):  # it ends by itself
            context.db.run(lambda tx: accounts.close(tx, flow, search), patience_s=RECORD_S)

"""The vector of a search's words: made here, or asked of the provider in its turn at the gate."""

import time
from contextlib import suppress
from uuid import uuid4

from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine import traces
from pipeline.engine.guarded_call import GateClosed
from pipeline.engine.kept_answers import Subject
from pipeline.providers import gates
from pipeline.providers.protocols import Embeddings
from pipeline.providers.traced_call import Tracer
from pipeline.storage.api_spend import CALLER
from pipeline.storage.context import Context

RECORD_S = 2.0
"""How long a search waits for a busy database that is to record its call."""


def query_vector(
    context: Context, flow: str, queue: str, maker: Embeddings, words: str, patience_s: float
) -> list[float]:
    """The vector of `words`, by one call through the gate of `queue`, which is traced as a search of `flow`.

    Waits up to `patience_s` seconds while the gate is full, then raises `GateClosed`. Raises `UnitError`, `RedisError`.
    """
    guarded = gates.guarded_call(context, queue, f"search:{uuid4().hex}")
    gates.sync(context)
    tracer, subject = Tracer(context, guarded), Subject(flow, traces.SEARCH, str(CALLER.get() or 0))
    deadline = time.monotonic() + patience_s
    while True:
        try:
            made = tracer.call(
                subject, "embeddings", "embed_query", maker.name, maker.model, [], lambda: maker.embed([words])
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
                context.db.run(lambda session: traces.record(session, tracer.trace), patience_s=RECORD_S)

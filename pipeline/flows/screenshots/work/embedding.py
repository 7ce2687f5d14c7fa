"""Vectors of nodes, a portion a message. Nobody claims a node for it: a vector that is made twice does no harm."""

from contextlib import suppress

import structlog
from redis import RedisError

from pipeline.engine import traces
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.settled import Settled
from pipeline.flows.screenshots.graph import vectors
from pipeline.flows.screenshots.graph.vectors import Wanted
from pipeline.flows.screenshots.work import batch
from pipeline.providers import registry
from pipeline.providers.protocols import Embeddings
from pipeline.providers.traced_call import Tracer
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PORTION = 64
"""Nodes whose vectors are made in one call."""
WAIT_S = 15.0
NOT_OF_THE_TEXT = {"auth", "forbidden", "not_found", "no_model"}
"""What the operator has to put right: no node is given up for it."""


def embeddings(settings: Settings) -> Embeddings:
    """What makes vectors of nodes: the configured provider, or lexical ones without any. Raises `UserError`."""
    own = settings.screenshots
    return registry.embeddings(settings, own.embeddings_provider or LOCAL, own.embeddings_model)


def space_of(settings: Settings) -> str:
    """Provider and model of the vectors that are made now: only vectors of one space can be compared."""
    made_by = embeddings(settings)
    return f"{made_by.name}:{made_by.model}"


def waiting(context: Context) -> bool:
    """Whether a node waits for its vector."""
    return bool(vectors.wanted(context, 1))


def embed(context: Context, guarded: GuardedCall | None, portion: int = PORTION) -> Settled:
    """Make the vectors of the next nodes that wait for one; `size` is the portion of the message that comes `again`.

    A text that cannot be embedded must not keep the others from it: if a portion is refused, half of it is tried, and
    so on; the one that is refused alone is given up. What follows a good portion is twice as large again.
    """
    tracer = Tracer(guarded)
    try:
        wanted = vectors.wanted(context, portion)
        if not wanted:
            return Settled()
        made = _vectors(context, tracer, wanted)
    except PenstockError as error:
        failure = error if isinstance(error, UnitError) else UnitError(str(error), kind=ErrorKind.PERMANENT)
        _record(context, tracer)
        return _fail(context, wanted, failure)
    finally:
        # Even if there was nothing to do: a place that is kept would keep others out.
        if guarded is not None:
            with suppress(RedisError):
                guarded.leave()
    _record(context, tracer)
    done = vectors.store(context, space_of(context.settings), list(zip(wanted, made, strict=True)))
    return Settled(done, again=waiting(context), size=min(PORTION, 2 * portion))


def _vectors(context: Context, tracer: Tracer, wanted: list[Wanted]) -> list[list[float]]:
    maker = embeddings(context.settings)
    texts = [node.text for node in wanted]
    if not context.settings.screenshots.embeddings_provider:
        return maker.embed(texts).vectors
    made = tracer.call("embeddings", "embed_nodes", maker.name, maker.model, lambda: maker.embed(texts)).vectors
    if len(made) != len(texts):
        # Permanent, so that fewer are asked for at once: some services take one text a call.
        what = f"{len(made)} vectors came for {len(texts)} texts"
        raise UnitError(what, kind=ErrorKind.PERMANENT, code="bad_reply")
    return made


def _fail(context: Context, wanted: list[Wanted], error: UnitError) -> Settled:
    log.warning("nodes.not_embedded", nodes=len(wanted), kind=str(error.kind), error=str(error))
    if error.kind is not ErrorKind.PERMANENT or error.code in NOT_OF_THE_TEXT:
        return Settled(retry_in_s=WAIT_S if error.retry_after_s is None else error.retry_after_s)
    if len(wanted) > 1:
        return Settled(again=True, size=len(wanted) // 2)
    vectors.give_up(context, wanted[0], str(error))
    return Settled(again=True, size=PORTION)


def _record(context: Context, tracer: Tracer) -> None:
    if tracer.trace is not None:
        context.db.run(lambda session: traces.record(session, batch.FLOW, "", "vectors", tracer.trace))

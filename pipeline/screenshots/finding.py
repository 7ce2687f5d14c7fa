"""Finding nodes for words: the query is embedded like the nodes; where that cannot be, words alone are looked for."""

import time
from dataclasses import astuple
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from redis import RedisError
from sqlalchemy import insert

from pipeline.engine.errors import PenstockError, UserError
from pipeline.engine.passage import GateClosed, Passage
from pipeline.engine.traces import AiCall
from pipeline.providers import gates, registry
from pipeline.providers.protocols import Embeddings, Vectors
from pipeline.screenshots.graph import search
from pipeline.screenshots.graph.search import QueryVector
from pipeline.screenshots.views import Found, Hit, NodeView, view_of
from pipeline.screenshots.working import FLOW
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

PATIENCE_S = 5.0
"""How long a search waits for its one call when the gate is full: full text answers at once."""


def embeddings(settings: Settings) -> Embeddings:
    """What makes the nodes' vectors, and the query's: the configured provider, or lexical ones. Raises `UserError`."""
    rules = settings.screenshots
    return registry.embeddings(settings, rules.embeddings_provider or LOCAL, rules.embeddings_model)


def space_of(made_by: Embeddings) -> str:
    """Provider and model of vectors: only those of one space can be compared."""
    return f"{made_by.name}:{made_by.model}"


def find(context: Context, words: str, *, since: datetime | None = None, app: str = "", limit: int = 10) -> Found:
    """Nodes for these words, best first. Raises `UserError` for an empty query."""
    if not words.strip():
        raise UserError("say what to look for", code="empty_query")
    vector, note = None, ""
    try:
        vector = _embedded(context, words.strip())
    except (PenstockError, RedisError) as error:
        note = f"By words alone, without meaning: {error}"
    found = search.search(context, words, vector=vector, since=since, app=app, limit=limit)
    hits = [
        Hit(view_of(NodeView, hit.node), round(hit.score, 5), hit.text_rank, hit.vector_rank, list(hit.apps))
        for hit in found.hits
    ]
    lexical = not context.settings.screenshots.embeddings_provider
    return Found(hits, found.screenshots, found.vectors, lexical, note)


def _embedded(context: Context, words: str) -> QueryVector:
    made_by = embeddings(context.settings)
    provider = context.settings.screenshots.embeddings_provider
    if not provider:
        return QueryVector(space_of(made_by), made_by.embed([words]).vectors[0])
    if not context.online:
        raise UserError("nothing is running here that could ask the provider of embeddings", code="offline")
    passage = gates.passage(context, gates.queue_name("embeddings", provider), f"search:{uuid4().hex}")
    if passage is not None:
        gates.sync(context)
    made = _asked(context, made_by, words, passage)
    return QueryVector(space_of(made_by), made.vectors[0])


def _asked(context: Context, made_by: Embeddings, words: str, passage: Passage | None) -> Vectors:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        begun = time.monotonic()
        try:
            made = (
                passage.call(lambda: made_by.embed([words]), lambda answer: (answer.model, *astuple(answer.usage)))
                if passage is not None
                else made_by.embed([words])
            )
        except GateClosed as shut:
            wait_s = shut.retry_after_s or 1.0
            if time.monotonic() + wait_s > deadline:
                raise
            time.sleep(wait_s)
            continue
        finally:
            if passage is not None:
                passage.leave()
        cost = passage.cost_of(made.model, *astuple(made.usage)) if passage is not None else 0.0
        _trace(context, made_by.name, made, int((time.monotonic() - begun) * 1000), cost)
        return made


def _trace(context: Context, provider: str, made: Vectors, latency_ms: int, cost: float) -> None:
    row: dict[str, Any] = {
        "flow": FLOW, "scope_id": "search", "unit": "0", "capability": "embeddings", "operation": "embed_query",
        "provider": provider, "model": made.model[:120], "status": "ok", "latency_ms": latency_ms,
        "input_tokens": made.usage.input_tokens, "output_tokens": made.usage.output_tokens, "cost": cost,
        "preview": "", "created_at": datetime.now(UTC),
    }  # fmt: skip
    context.db.run(lambda session: session.execute(insert(AiCall), [row]))

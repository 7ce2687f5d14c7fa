"""Finding songs: like one that there is, or for a mood in words."""

import time
from dataclasses import astuple
from datetime import UTC, datetime
from uuid import uuid4

from sqlalchemy import func, select

from pipeline.engine.errors import UnitError, UserError
from pipeline.engine.guarded_call import GateClosed
from pipeline.flows.music import queries
from pipeline.flows.music import vectors as spaces
from pipeline.flows.music.live import EMBEDDING_ONLY
from pipeline.flows.music.models import SONGS
from pipeline.flows.music.views import Found, Match
from pipeline.flows.music.work import result
from pipeline.providers import gates
from pipeline.providers.protocols import Vectors
from pipeline.storage import vectors
from pipeline.storage.context import Context

PATIENCE_S = 20.0
"""How long a search waits for its one call when the gate is full."""
MAX_LIMIT = 1000
_SPARE = 50
"""Hits beyond those asked for, since songs that are missing are left out."""


def like_song(context: Context, reference: str, limit: int = 10) -> Found:
    """Songs like this one, best first. Raises `UserError` if it is unknown or has no vector yet."""
    song = queries.song(context, reference)
    with context.db.read() as session:
        found = vectors.get(session, result.KIND, song.id)
    if found is None:
        raise UserError(f"{song.artist} - {song.title} has no vector yet: `penstock music start`", code="no_vector")
    model, vector = found
    return _search(context, model, vector, limit, without=song.id)


def for_mood(context: Context, words: str, limit: int = 10) -> Found:
    """Songs for a mood, best first. Asks the provider of embeddings, through its gate, if there is one."""
    if not words.strip():
        raise UserError("say what mood the songs should have", code="empty_query")
    space = spaces.space_of(context.settings)
    if not searchable(context):
        # Nothing could be found: that is not worth a call.
        return Found([], lexical=spaces.is_lexical(context.settings), searched=0)
    return _search(context, space, _embedded(context, words.strip()), limit)


def searchable(context: Context) -> int:
    """Songs that a search for a mood could find: those with a vector of the kind that is made now."""
    return _count(context, spaces.space_of(context.settings))


def _count(context: Context, model: str) -> int:
    query = select(func.count()).where(SONGS.c.vector_model == model)
    with context.db.read() as session:
        return session.execute(query).scalar_one()


def _search(
    context: Context, model: str, vector: "vectors.Floats | list[float]", limit: int, *, without: int | None = None
) -> Found:
    limit = max(1, min(limit, MAX_LIMIT))
    with context.db.read() as session:
        hits = vectors.search(session, result.KIND, model, vector, limit + _SPARE, without=without)
    songs = queries.songs_by_id(context, [hit.item_id for hit in hits])
    matches = [Match(songs[hit.item_id], round(hit.score, 4)) for hit in hits if hit.item_id in songs]
    here = [match for match in matches if match.song.missing_since is None]
    return Found(here[:limit], lexical=model.startswith("local:"), searched=_count(context, model))


def _embedded(context: Context, words: str) -> list[float]:
    made_by = spaces.embeddings(context.settings)
    if spaces.is_lexical(context.settings):
        return made_by.embed([words]).vectors[0]
    holder = f"search:{uuid4().hex}"
    guarded = gates.guarded_call(context, EMBEDDING_ONLY, holder)
    assert guarded is not None, "a provider of embeddings has a gate"
    gates.sync(context)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        begun = time.monotonic()
        try:
            made = guarded.call(lambda: made_by.embed([words]), lambda answer: (answer.model, *astuple(answer.usage)))
        except GateClosed as closed:
            wait_s = closed.retry_after_s or 1.0
            if time.monotonic() + wait_s > deadline:
                raise UserError(f"{closed}: try again in {wait_s:.0f} s", code="gate_closed") from None
            time.sleep(wait_s)
            continue
        except UnitError as error:
            raise UserError(str(error), code=error.code or "provider") from error
        finally:
            guarded.leave()
        cost = guarded.cost_of(made.model, *astuple(made.usage))
        _trace(context, made_by.name, made, int((time.monotonic() - begun) * 1000), cost)
        return made.vectors[0]


def _trace(context: Context, provider: str, made: Vectors, latency_ms: int, cost: float) -> None:
    trace = {
        "capability": "embeddings", "operation": "embed_query", "provider": provider, "model": made.model[:120],
        "status": "ok", "error": None, "latency_ms": latency_ms, "input_tokens": made.usage.input_tokens,
        "output_tokens": made.usage.output_tokens, "cost": cost, "preview": "", "created_at": datetime.now(UTC),
    }  # fmt: skip
    context.db.run(lambda session: result.record_call(session, "search", 0, trace))

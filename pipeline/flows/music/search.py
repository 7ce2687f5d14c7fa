"""Finding songs: like one that is there, or for a mood in words."""

from sqlalchemy import func, select

from pipeline.engine.errors import UnitError, UserError
from pipeline.engine.guarded_call import GateClosed
from pipeline.flows.music import queries
from pipeline.flows.music.live_settings import EMBEDDING_ONLY
from pipeline.flows.music.models import SONGS
from pipeline.flows.music.vectors import KIND, embeddings, is_lexical, vector_space
from pipeline.flows.music.views import Found, Match
from pipeline.providers.query_vector import query_vector
from pipeline.storage import vectors
from pipeline.storage.context import Context

PATIENCE_S = 20.0
"""How long a search waits for its one call while the gate is full."""
MAX_LIMIT = 1000
_SPARE = 50
"""More hits than asked for, since missing songs are left out."""


def like_song(context: Context, reference: str, limit: int = 10) -> Found:
    """Songs like this one, best first. Raises `UserError` if it is unknown or has no vector yet."""
    song = queries.song(context, reference)
    with context.db.read() as session:
        found = vectors.get(session, KIND, song.id)
    if found is None:
        raise UserError(f"{song.artist} - {song.title} has no vector yet: `penstock music start`", code="no_vector")
    model, vector = found
    return _search(context, model, vector, limit, without=song.id)


def for_mood(context: Context, words: str, limit: int = 10) -> Found:
    """Songs for a mood, best first. Asks the provider of embeddings, through its gate, if there is one."""
    if not words.strip():
        raise UserError("say what mood the songs should have", code="empty_query")
    if not count_searchable(context):
        # Nothing could be found: that is not worth a call.
        return Found([], lexical=is_lexical(context.settings), searched=0)
    return _search(context, vector_space(context.settings), _embedded(context, words.strip()), limit)


def count_searchable(context: Context) -> int:
    """How many songs a search for a mood could find: those with a vector of the current space."""
    return _count(context, vector_space(context.settings))


def _count(context: Context, model: str) -> int:
    query = select(func.count()).where(SONGS.c.vector_model == model)
    with context.db.read() as session:
        return session.execute(query).scalar_one()


def _search(
    context: Context, model: str, vector: "vectors.Floats | list[float]", limit: int, *, without: int | None = None
) -> Found:
    limit = max(1, min(limit, MAX_LIMIT))
    with context.db.read() as session:
        hits = vectors.search(session, KIND, model, vector, limit + _SPARE, without=without)
    songs = queries.songs_by_id(context, [hit.item_id for hit in hits])
    matches = [Match(songs[hit.item_id], round(hit.score, 4)) for hit in hits if hit.item_id in songs]
    here = [match for match in matches if match.song.missing_since is None]
    return Found(here[:limit], lexical=model.startswith("local:"), searched=_count(context, model))


def _embedded(context: Context, words: str) -> list[float]:
    maker = embeddings(context.settings)
    if is_lexical(context.settings):
        return maker.embed([words]).vectors[0]
    try:
        return query_vector(context, "music", EMBEDDING_ONLY, maker, words, PATIENCE_S)
    except GateClosed as closed:
        raise UserError(f"{closed}: try again in {closed.retry_after_s or 1.0:.0f} s", code="gate_closed") from None
    except UnitError as error:
        raise UserError(str(error), code=error.code or "provider") from error

"""Searches songs: similar to a song, by words, or for a mood."""

from collections.abc import Sequence

from sqlalchemy import func, select

from pipeline.engine.errors import UnitError, UserError
from pipeline.engine.guarded_call import GateClosed
from pipeline.flows.music import fulltext, queries
from pipeline.flows.music.live_settings import EMBEDDING_ONLY
from pipeline.flows.music.models import SONGS
from pipeline.flows.music.vectors import KIND, embeddings, is_lexical, vector_space
from pipeline.flows.music.views import Match, SearchResult
from pipeline.providers.query_vector import query_vector
from pipeline.storage import vectors
from pipeline.storage.context import Context
from pipeline.storage.fusion import fuse, ranks
from pipeline.storage.vectors import nearest
from pipeline.storage.vectors.codes import Floats
from pipeline.storage.vectors.nearest import Hit

PATIENCE_S = 20.0
"""How long a search waits for its call while the gate is full."""
MAX_LIMIT = 1000
_EXTRA = 50
"""Hits beyond the limit, since the result leaves out missing songs."""


def like_song(context: Context, reference: str, limit: int = 10) -> SearchResult:
    """Find songs like this one, best first, without it and without missing songs; `limit` is at most 1000.

    Raises `UserError` if it is unknown or ambiguous, or has no vector yet.
    """
    song = queries.song(context, reference)
    with context.db.read() as session:
        stored = vectors.get(session, KIND, song.id)
    if stored is None:
        raise UserError(
            f"{song.artist} - {song.title} has no vector yet; `penstock music start` makes them, or says why not",
            code="no_vector",
        )
    model, vector = stored
    return _search(context, model, vector, _within(limit), without=song.id)


def for_words(context: Context, words: str, limit: int = 10) -> SearchResult:
    """Find songs by names, albums and tags, and for a mood, best first; `limit` is at most 1000.

    Calls the provider of embeddings through its gate, if one is configured and songs have vectors. Raises `UserError`
    without words, or if that call fails.
    """
    words, limit = words.strip(), _within(limit)
    if not words:
        raise UserError("say a mood, or words of the songs' names", code="empty_query")
    with context.db.read() as session:
        named, any_word = fulltext.search(session, words, limit + _EXTRA)
    space = vector_space(context.settings)
    # Without songs that have a vector, a call would be wasted.
    hits = _hits(context, space, _embedded(context, words), limit) if _count(context, space) else []
    ranked = fuse(ranks(named), ranks(hit.item_id for hit in hits))
    return _result(context, space, [item for item, _ in ranked], hits, limit, any_word=any_word)


def count_searchable(context: Context) -> int:
    """Count the songs that a search for a mood can find: those with a vector of the current space."""
    return _count(context, vector_space(context.settings))


def _count(context: Context, model: str) -> int:
    query = select(func.count()).where(SONGS.c.vector_model == model)
    with context.db.read() as session:
        return session.execute(query).scalar_one()


def _within(limit: int) -> int:
    return max(1, min(limit, MAX_LIMIT))


def _search(
    context: Context, model: str, vector: "Floats | list[float]", limit: int, *, without: int | None = None
) -> SearchResult:
    hits = _hits(context, model, vector, limit, without=without)
    return _result(context, model, [hit.item_id for hit in hits], hits, limit)


def _hits(
    context: Context, model: str, vector: "Floats | list[float]", limit: int, *, without: int | None = None
) -> "list[Hit]":
    with context.db.read() as session:
        return nearest.search(session, KIND, model, vector, limit + _EXTRA, without=without)


def _result(
    context: Context,
    model: str,
    ids: Sequence[int],
    hits: "Sequence[Hit]",
    limit: int,
    *,
    any_word: bool = False,
) -> SearchResult:
    scores = {hit.item_id: round(hit.score, 4) for hit in hits}
    songs = queries.songs_by_id(context, list(ids))
    present = [songs[key] for key in ids if key in songs and songs[key].missing_since is None]
    with context.db.read() as session:
        present_count = session.execute(select(func.count()).where(SONGS.c.missing_since.is_(None))).scalar_one()
    return SearchResult(
        [Match(song, scores.get(song.id)) for song in present[:limit]],
        lexical=model.startswith("local:"),
        searched=_count(context, model),
        songs=present_count,
        any_word=any_word,
    )


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

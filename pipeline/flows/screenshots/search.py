"""Searches nodes by text and by vectors. If the query gets no vector, the search matches words alone."""

from dataclasses import replace
from datetime import datetime

from redis import RedisError
from sqlalchemy import or_, select

from pipeline.engine.errors import PenstockError, UserError
from pipeline.engine.tables import mentions
from pipeline.flows.screenshots.graph import search
from pipeline.flows.screenshots.graph.models import LINKS
from pipeline.flows.screenshots.graph.search import QueryVector
from pipeline.flows.screenshots.live_settings import SCREENSHOT_EMBEDDINGS
from pipeline.flows.screenshots.models import SHOTS
from pipeline.flows.screenshots.scopes import FLOW
from pipeline.flows.screenshots.views import Hit, SearchResult
from pipeline.flows.screenshots.work import embedding
from pipeline.providers import lexical
from pipeline.providers.query_vector import query_vector
from pipeline.storage.context import Context
from pipeline.storage.fusion import excerpt, query_words

EXCERPT_CHARS = 120
PATIENCE_S = 5.0
"""Seconds that a search waits at a full gate for its call; after that, full text answers alone."""


def find(
    context: Context,
    words: str,
    since: datetime | None = None,
    app: str = "",
    limit: int = 10,
    *,
    by_meaning: bool = True,
) -> SearchResult:
    """Search nodes by text and by vectors; return the best first. `since`: the earliest time of a node. `app`: words of
    a program's name.

    Calls the embeddings provider, if one is configured, unless `by_meaning` is False; if the call fails, words alone
    decide, and `note` says why. Raises `UserError` without words.
    """
    if not words.strip():
        raise UserError("the query is empty", code="empty_query")
    vector, note = None, ""
    lexical = not context.settings.screenshots.embeddings_provider
    try:
        vector = _embedded(context, words.strip()) if by_meaning or lexical else None
    except (PenstockError, RedisError) as error:
        note = f"Searched by words only, not by meaning: {error}"
    result = search.search(context, words, vector=vector, since=since, app=app, limit=limit)
    hits = [_with_excerpt(context, hit, words) for hit in result.hits]
    return replace(result, hits=hits, lexical=lexical, note=note)


def _with_excerpt(context: Context, hit: Hit, words: str) -> Hit:
    """Add to a hit the id and the original path of the latest frame whose text has one of the words, and the text
    around it; unchanged without such a frame."""
    read = or_(*(mentions(SHOTS.c.ocr_text, word) for word in query_words(words)))
    shown = select(SHOTS.c.id, SHOTS.c.ocr_text, SHOTS.c.original_path).join(LINKS, LINKS.c.shot_id == SHOTS.c.id)
    latest = shown.where(LINKS.c.node_id == hit.node.id, read).order_by(SHOTS.c.ts.desc(), SHOTS.c.id.desc()).limit(1)
    with context.db.read() as session:
        row = session.execute(latest).one_or_none()
    if row is None:
        return hit
    around = excerpt(row.ocr_text, words, EXCERPT_CHARS)
    return replace(hit, shot_id=row.id, excerpt=around, original_path=row.original_path)


def _embedded(context: Context, words: str) -> QueryVector:
    maker, space = embedding.embeddings(context.settings), embedding.space_of(context.settings)
    if not context.settings.screenshots.embeddings_provider:
        return QueryVector(space, maker.embed([words]).vectors[0], lexical.FLOOR)
    if not context.online:
        raise UserError("no stack is running that could call the embeddings provider", code="offline")
    return QueryVector(space, query_vector(context, FLOW, SCREENSHOT_EMBEDDINGS, maker, words, PATIENCE_S))

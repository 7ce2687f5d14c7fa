"""Searches bases by words and by vectors, fused by reciprocal rank; by words alone if the query has no vector."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from redis import RedisError
from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from pipeline.engine.errors import PenstockError, UserError
from pipeline.flows.knowledge.live_settings import embeddings_queue
from pipeline.flows.knowledge.models import BASES, CHUNKS, FULL_TEXT, ITEMS
from pipeline.flows.knowledge.queries import UnknownBase
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import FLOW, ItemType
from pipeline.flows.knowledge.views import Hit, Hits, heading_of
from pipeline.flows.knowledge.work.known import kind_of
from pipeline.providers import lexical, registry
from pipeline.providers.query_vector import query_vector
from pipeline.settings import LOCAL
from pipeline.storage import vectors
from pipeline.storage.context import Context
from pipeline.storage.fulltext import looser
from pipeline.storage.fusion import RRF_K, excerpt, fuse, ranks
from pipeline.storage.lists import one_of, pairs
from pipeline.storage.vectors import nearest
from pipeline.storage.vectors.codes import Floats

MAX_LIMIT, MAX_AROUND = 200, 5
MAX_WORDS_CHARS = 4000
"""Characters of the query that are used."""
EXCERPT_CHARS = 240
PATIENCE_S = 5.0
"""How long a search waits for a full gate before it uses words alone."""
_DEPTH = 100
"""The least depth to which each list is read."""
_DEEPER = 10
"""The factor of the depth for a second read, if too many hits are hidden, such as items being deleted."""
_DEPTH_FILTERED = 500
"""The least depth of the list of vectors if more than `_FEW` chunks pass the filters."""
_FEW = 3000
"""If at most this many chunks pass the filters, the search compares only their vectors."""


@dataclass(frozen=True)
class _Query:
    """A query: its words and vectors, the bases' names by id, and conditions on items."""

    words: str
    names: Mapping[str, str]
    scopes: Sequence[str] | None
    """The ids of the bases to search; None: all bases."""
    conditions: Sequence[ColumnElement[bool]]
    vectors: Mapping[str, Floats]
    """The vector of the words, by model."""
    kinds: Mapping[str, Sequence[str]]

    @property
    def passing(self) -> Select[int]:
        """Return a query for the published chunks that pass the filters."""
        return select(CHUNKS.c.id).join_from(ITEMS, CHUNKS, _PUBLISHED).where(*self.conditions)


_PUBLISHED = and_(CHUNKS.c.item_id == ITEMS.c.id, CHUNKS.c.generation == ITEMS.c.generation)


def search(
    context: Context,
    bases: Sequence[str] | None,
    words: str,
    *,
    limit: int = 10,
    types: Sequence[str] | None = None,
    item_ids: Sequence[str] | None = None,
    group_ids: Sequence[str] | None = None,
    since: datetime | None = None,
    min_score: float | None = None,
    around: int = 0,
    by_meaning: bool = True,
) -> Hits:
    """Find chunks for these words, best first, in bases by id or name; None: in all bases.

    The other arguments restrict types, ids and groups of items; `since`: the least creation time of an item;
    `min_score`: the least score, 0 to 1, of a hit. `around`: how many neighbours each hit has in `before` and `after`,
    at most 5. `limit` is at most 200. `by_meaning=False`: search by words alone. `Hits.note` names models whose vectors
    were left out after an error. Raises `UnknownBase`, and `UserError` without words.
    """
    if not words.strip():
        raise UserError("say what to look for", code="empty_query")
    words = words.strip()[:MAX_WORDS_CHARS]
    limit, around = max(1, min(limit, MAX_LIMIT)), max(0, min(around, MAX_AROUND))
    with context.db.read() as session:
        names, others = _bases(session, bases)
        kinds = vectors.models_of(session, [kind_of(base_id) for base_id in names]) if by_meaning else {}
        filters = [
            one_of(session, column, list(values))
            for column, values in ((ITEMS.c.type, types), (ITEMS.c.id, item_ids), (ITEMS.c.group_id, group_ids))
            if values is not None
        ]
        if since is not None:
            filters.append(ITEMS.c.created_at >= since)
        if filters:
            filters += [ITEMS.c.deleting.is_(False), one_of(session, ITEMS.c.base_id, list(names))]
    query_vectors, notes = _embedded(context, list(kinds), words)
    query = _Query(words, names, list(names) if others else None, filters, query_vectors, kinds)
    with context.db.read() as session:
        hits = _hits(session, query, limit, min_score or 0.0, around)
    return Hits(hits, any(_provider(model) == LOCAL for model in kinds), " ".join(notes))


def asks(context: Context, bases: Sequence[str] | None) -> list[str]:
    """Return the models, as `provider:model`, whose providers a search by meaning calls for the vector of its words;
    empty if it needs no call.

    Raises `UnknownBase`.
    """
    with context.db.read() as session:
        names, _ = _bases(session, bases)
        models = vectors.models_of(session, [kind_of(base_id) for base_id in names])
    return [model for model in models if _provider(model) != LOCAL]


def _bases(session: Session, requested: Sequence[str] | None) -> tuple[dict[str, str], bool]:
    """Return (names by id, whether other bases have rows, even those being deleted). Raises `UnknownBase`."""
    query = select(BASES.c.id, BASES.c.name).where(BASES.c.deleting.is_(False))
    if requested is not None:
        query = query.where(or_(one_of(session, BASES.c.id, requested), one_of(session, BASES.c.name, requested)))
    rows = {row.id: row.name for row in session.execute(query)}
    if requested is not None:
        ids = {name: base_id for base_id, name in rows.items()} | {base_id: base_id for base_id in rows}
        if unknown := [each for each in requested if each not in ids]:
            raise UnknownBase(unknown[0])
        rows = {ids[each]: rows[ids[each]] for each in requested}
    return rows, session.execute(select(func.count()).select_from(BASES)).scalar_one() > len(rows)


def _provider(model: str) -> str:
    return model.partition(":")[0]


def _embedded(context: Context, models: Sequence[str], words: str) -> tuple[dict[str, Floats], list[str]]:
    """Return (the vector of the words by model, a note for each model that failed)."""
    by_model: dict[str, Floats] = {}
    notes = []
    for model in models:
        try:
            by_model[model] = np.asarray(_vector(context, model, words), np.float32)
        except (PenstockError, RedisError) as error:
            notes.append(f"By words alone, without meaning, where {model} made the vectors: {error}")
    return by_model, notes


def _vector(context: Context, model: str, words: str) -> Sequence[float]:
    provider = _provider(model)
    if provider == LOCAL:
        return registry.embeddings(context.settings, LOCAL).embed([words]).vectors[0]
    if provider not in own(context.settings).providers:
        raise UserError(f"'{provider}' is not a provider of knowledge any more", code="unknown_provider")
    maker = registry.embeddings(context.settings, provider, model.partition(":")[2])
    if not context.online:
        raise UserError("Redis is down, so Penstock cannot call the provider of embeddings", code="offline")
    return query_vector(context, FLOW, embeddings_queue(provider), maker, words, PATIENCE_S)


def _hits(session: Session, query: _Query, limit: int, least: float, around: int) -> list[Hit]:
    depth = max(_DEPTH, 2 * limit)
    for deep in (depth, depth * _DEEPER):
        by_text = _by_text(session, query, limit, deep)
        similar = _by_vector(session, query, deep)
        candidates = {*by_text, *(chunk_id for each in similar for chunk_id in each)}
        shown = _shown(session, query, candidates)
        if len(shown) >= min(limit, len(candidates)) or len(candidates) < deep:
            break
    text_rank = ranks(chunk_id for chunk_id in by_text if chunk_id in shown)
    by_model = [ranks(chunk_id for chunk_id in each if chunk_id in shown) for each in similar]
    lists = bool(text_rank) + any(by_model)
    fused = [(chunk_id, score * (RRF_K + 1) / lists) for chunk_id, score in fuse(text_rank, *by_model)]
    best = {chunk_id: min(1.0, score) for chunk_id, score in fused[:limit] if score >= least}
    cosine = {chunk_id: score for each in similar for chunk_id, score in each.items()}
    vector_rank = {chunk_id: rank for each in by_model for chunk_id, rank in each.items()}
    rows = _rows(session, list(best))
    beside = _beside(session, rows.values(), around)
    return [
        Hit(
            chunk_id,
            row.item_id,
            row.base_id,
            query.names[row.base_id],
            row.title or row.name,
            ItemType(row.type),
            row.url or row.name,
            row.group_id,
            row.group_name,
            heading_of(row.heading),
            row.page,
            row.number,
            row.start,
            row.end,
            row.text,
            excerpt(row.text, query.words, EXCERPT_CHARS),
            round(best[chunk_id], 4),
            round(cosine[chunk_id], 4) if chunk_id in cosine else None,
            text_rank.get(chunk_id),
            vector_rank.get(chunk_id),
            *beside(row),
        )
        for chunk_id in best
        if (row := rows.get(chunk_id))
    ]


def _by_text(session: Session, query: _Query, limit: int, depth: int) -> list[int]:
    only = query.passing if query.conditions else None
    matches = FULL_TEXT.search(session, query.words, depth, scopes=query.scopes, only=only)
    # A question contains words that its answer lacks.
    for loose in looser(query.words):
        if len(matches) < limit:
            more = FULL_TEXT.search(session, loose, depth, scopes=query.scopes, only=only, any_word=True)
            known = set(matches)
            matches += [chunk_id for chunk_id in more if chunk_id not in known]
    return matches


def _by_vector(session: Session, query: _Query, depth: int) -> list[dict[int, float]]:
    """Return a dict for each model: the cosine of the nearest chunks by id, best first."""
    if not query.vectors:
        return []
    few = None
    if query.conditions:
        few = session.execute(query.passing.limit(_FEW + 1)).scalars().all()
        few, depth = (few, depth) if len(few) <= _FEW else (None, max(_DEPTH_FILTERED, 3 * depth))
    similar = []
    for model, vector in query.vectors.items():
        floor = lexical.FLOOR if _provider(model) == LOCAL else 0.0
        hits = nearest.search_many(session, query.kinds[model], model, vector, depth, among=few)
        similar.append({hit.item_id: hit.score for hit in hits if hit.score > floor})
    return similar


def _shown(session: Session, query: _Query, chunk_ids: Iterable[int]) -> set[int]:
    """Return the chunks that may be shown: published, not being deleted, and passing the filters."""
    shown = and_(ITEMS.c.deleting.is_(False), one_of(session, CHUNKS.c.id, chunk_ids), *query.conditions)
    rows = session.execute(select(CHUNKS.c.id, CHUNKS.c.base_id).join_from(CHUNKS, ITEMS, _PUBLISHED).where(shown))
    return {row.id for row in rows if row.base_id in query.names}


def _rows(session: Session, chunk_ids: Sequence[int]) -> dict[int, Any]:
    of_item = (ITEMS.c.title, ITEMS.c.name, ITEMS.c.type, ITEMS.c.url, ITEMS.c.group_id, ITEMS.c.group_name)
    query = select(CHUNKS, *of_item).join_from(CHUNKS, ITEMS, _PUBLISHED).where(one_of(session, CHUNKS.c.id, chunk_ids))
    return {row.id: row for row in session.execute(query)}


def _beside(
    session: Session, rows: Iterable[Any], around: int
) -> Callable[[Any], tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return a function from a chunk's row to the texts (before, after) it."""
    numbers = {(row.item_id, row.number + step) for row in rows for step in range(-around, around + 1) if step}
    texts: dict[tuple[str, int], str] = {}
    if numbers:
        wanted = pairs(session, sorted(numbers))
        named = and_(CHUNKS.c.item_id == wanted.c.text, CHUNKS.c.number == wanted.c.number)
        query = select(CHUNKS.c.item_id, CHUNKS.c.number, CHUNKS.c.text).select_from(wanted)
        neighbours = query.join(CHUNKS, named).join(ITEMS, _PUBLISHED)
        texts = {(row.item_id, row.number): row.text for row in session.execute(neighbours)}

    def of(row: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        sides = (range(row.number - around, row.number), range(row.number + 1, row.number + around + 1))
        before, after = (tuple(texts[row.item_id, at] for at in side if (row.item_id, at) in texts) for side in sides)
        return before, after

    return of

"""Searching bases: words and vectors, fused by reciprocal rank; what cannot be embedded is matched by words alone."""

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
"""Of the words, no more is looked for."""
EXCERPT_CHARS = 240
PATIENCE_S = 5.0
"""How long a search waits for a call when the gate is full: full text answers at once."""
_DEPTH = 100
"""How deep each list is read, at least …"""
_DEEPER = 10
"""… and so many times as deep if too much of it is not shown, such as items that are being deleted."""
_DEPTH_FILTERED = 500
"""How deep the list of vectors is read for what passes filters that let many chunks through."""
_FEW = 3000
"""If at most this many chunks pass the filters, only their vectors are compared."""


@dataclass(frozen=True)
class _Query:
    """What is looked for, with the bases by id, and what items must be like."""

    words: str
    names: Mapping[str, str]
    scopes: Sequence[str] | None
    """None: there are no other bases."""
    conditions: Sequence[ColumnElement[bool]]
    vectors: Mapping[str, Floats]
    """By model."""
    kinds: Mapping[str, Sequence[str]]

    @property
    def passing(self) -> Select[int]:
        """The chunks that pass the filters; without those that are not published."""
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
    """Chunks for these words, best first, of bases by id or name; None: of all bases.

    Only of items of these types, ids or groups, added since then. `around`: with so many chunks before and after each.
    `by_meaning=False`: by words alone. Raises `UnknownBase`, and `UserError` for no words.
    """
    if not words.strip():
        raise UserError("say what to look for", code="empty_query")
    words = words.strip()[:MAX_WORDS_CHARS]
    limit, around = max(1, min(limit, MAX_LIMIT)), max(0, min(around, MAX_AROUND))
    with context.db.read() as session:
        names, others = _bases(session, bases)
        kinds = vectors.models_of(session, [kind_of(base_id) for base_id in names]) if by_meaning else {}
        filters = [
            one_of(session, column, list(some))
            for column, some in ((ITEMS.c.type, types), (ITEMS.c.id, item_ids), (ITEMS.c.group_id, group_ids))
            if some is not None
        ]
        if since is not None:
            filters.append(ITEMS.c.created_at >= since)
        if filters:
            filters += [ITEMS.c.deleting.is_(False), one_of(session, ITEMS.c.base_id, list(names))]
    made, notes = _embedded(context, list(kinds), words)
    query = _Query(words, names, list(names) if others else None, filters, made, kinds)
    with context.db.read() as session:
        hits = _hits(session, query, limit, min_score or 0.0, around)
    return Hits(hits, any(_provider(model) == LOCAL for model in kinds), " ".join(notes))


def asks(context: Context, bases: Sequence[str] | None) -> list[str]:
    """The models (`provider:model`) that a search by meaning asks for a vector of the words; none: it costs nothing.

    Raises `UnknownBase`.
    """
    with context.db.read() as session:
        names, _ = _bases(session, bases)
        found = vectors.models_of(session, [kind_of(base_id) for base_id in names])
    return [model for model in found if _provider(model) != LOCAL]


def _bases(session: Session, asked: Sequence[str] | None) -> tuple[dict[str, str], bool]:
    """(names by id, whether there are other bases). Raises `UnknownBase`."""
    query = select(BASES.c.id, BASES.c.name).where(BASES.c.deleting.is_(False))
    if asked is not None:
        query = query.where(or_(one_of(session, BASES.c.id, asked), one_of(session, BASES.c.name, asked)))
    rows = {row.id: row.name for row in session.execute(query)}
    if asked is not None:
        ids = {name: base_id for base_id, name in rows.items()} | {base_id: base_id for base_id in rows}
        if unknown := [each for each in asked if each not in ids]:
            raise UnknownBase(unknown[0])
        rows = {ids[each]: rows[ids[each]] for each in asked}
    return rows, session.execute(select(func.count()).select_from(BASES)).scalar_one() > len(rows)


def _provider(model: str) -> str:
    return model.partition(":")[0]


def _embedded(context: Context, models: Sequence[str], words: str) -> tuple[dict[str, Floats], list[str]]:
    """The vector of the words for each model, and why there is none for the others."""
    made: dict[str, Floats] = {}
    notes = []
    for model in models:
        try:
            made[model] = np.asarray(_vector(context, model, words), np.float32)
        except (PenstockError, RedisError) as error:
            notes.append(f"By words alone, without meaning, where {model} made the vectors: {error}")
    return made, notes


def _vector(context: Context, model: str, words: str) -> Sequence[float]:
    provider = _provider(model)
    if provider == LOCAL:
        return registry.embeddings(context.settings, LOCAL).embed([words]).vectors[0]
    if provider not in own(context.settings).providers:
        raise UserError(f"'{provider}' is not a provider of knowledge any more", code="unknown_provider")
    maker = registry.embeddings(context.settings, provider, model.partition(":")[2])
    if not context.online:
        raise UserError("nothing is running here that could ask the provider of embeddings", code="offline")
    return query_vector(context, FLOW, embeddings_queue(provider), maker, words, PATIENCE_S)


def _hits(session: Session, query: _Query, limit: int, least: float, around: int) -> list[Hit]:
    depth = max(_DEPTH, 2 * limit)
    for deep in (depth, depth * _DEEPER):
        by_text = _by_text(session, query, limit, deep)
        similar = _by_vector(session, query, deep)
        found = {*by_text, *(chunk_id for each in similar for chunk_id in each)}
        shown = _shown(session, query, found)
        if len(shown) >= min(limit, len(found)) or len(found) < deep:
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
    found = FULL_TEXT.search(session, query.words, depth, scopes=query.scopes, only=only)
    # A question has words that its answer has not.
    for loose in looser(query.words):
        if len(found) < limit:
            more = FULL_TEXT.search(session, loose, depth, scopes=query.scopes, only=only, any_word=True)
            known = set(found)
            found += [chunk_id for chunk_id in more if chunk_id not in known]
    return found


def _by_vector(session: Session, query: _Query, depth: int) -> list[dict[int, float]]:
    """The cosines of the nearest chunks of each model, best first."""
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
    """Those that are published, of items and bases that are not being deleted, and that pass the filters."""
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
    """What gives the texts (before, after) a chunk."""
    numbers = {(row.item_id, row.number + step) for row in rows for step in range(-around, around + 1) if step}
    texts: dict[tuple[str, int], str] = {}
    if numbers:
        asked = pairs(session, sorted(numbers))
        named = and_(CHUNKS.c.item_id == asked.c.text, CHUNKS.c.number == asked.c.number)
        query = select(CHUNKS.c.item_id, CHUNKS.c.number, CHUNKS.c.text).select_from(asked)
        found = query.join(CHUNKS, named).join(ITEMS, _PUBLISHED)
        texts = {(row.item_id, row.number): row.text for row in session.execute(found)}

    def of(row: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        sides = (range(row.number - around, row.number), range(row.number + 1, row.number + around + 1))
        before, after = (tuple(texts[row.item_id, at] for at in side if (row.item_id, at) in texts) for side in sides)
        return before, after

    return of

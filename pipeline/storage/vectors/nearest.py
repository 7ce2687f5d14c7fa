"""Search first by codes in memory, then exactly with the few hundred vectors whose codes are nearest.

A small collection is compared exactly as a whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from pipeline.storage.lists import one_of, pairs
from pipeline.storage.vectors import changes, memory
from pipeline.storage.vectors.codes import Floats
from pipeline.storage.vectors.index import nearest
from pipeline.storage.vectors.models import VECTORS

_CHUNK = 4000
"""Vectors that a search holds in memory at once."""
_EXACT_VALUES = 2_000_000
"""Collections of up to this many numbers are compared exactly: 2,000 vectors of 1,000 take some 20 ms."""
_CANDIDATES, _CANDIDATES_EACH = 600, 2
"""Vectors that are compared exactly: this many, and this many more for each requested hit."""
_MOST_REMOVED = 0.1
"""The share of the nearest vectors that may be removed ones before an index is cleaned."""
Rows = Sequence[tuple[str, int, bytes]]
"""(kind, item, vector)"""


@dataclass(frozen=True)
class Hit:
    """A matching item; `score` is the cosine, -1 to 1."""

    item_id: int
    score: float
    kind: str


def search(
    session: Session,
    kind: str,
    model: str,
    vector: Sequence[float] | Floats,
    limit: int,
    *,
    without: int | None = None,
    among: Sequence[int] | None = None,
) -> list[Hit]:
    """Return the items most like `vector`, best first; none for a vector of zeros. `without`: leave out this item.
    `among`: search only these. Sees this transaction's writes.

    Scores are exact. In a large collection, a search may miss one of the best items; it misses fewer than one in 100.
    """
    if limit < 1:
        return []
    hits = search_many(session, [kind], model, vector, limit + (without is not None), among=among)
    return [hit for hit in hits if hit.item_id != without][:limit]


def search_many(
    session: Session,
    kinds: Sequence[str],
    model: str,
    vector: Sequence[float] | Floats,
    limit: int,
    *,
    among: Sequence[int] | None = None,
) -> list[Hit]:
    """Return the items of several kinds most like `vector`, best first, in as many statements as one kind needs; none
    for a vector of zeros. `among`: search only items with these ids, of each kind. Sees this transaction's writes."""
    wanted = np.asarray(vector, dtype=np.float32)
    norm = float(np.linalg.norm(wanted))
    if limit < 1 or not 0 < norm < np.inf or not kinds:
        return []
    kinds = sorted(set(kinds))
    places, ids, scores = _compared(
        _read(session, kinds, model, wanted, limit, among), kinds, wanted / np.float32(norm)
    )
    # The last digits depend on the other vectors in the computation.
    best = np.lexsort((places, ids, -scores.round(6)))[:limit]
    return [Hit(int(ids[i]), float(scores[i]), kinds[places[i]]) for i in best]


def _read(
    session: Session, kinds: list[str], model: str, wanted: Floats, limit: int, among: Sequence[int] | None
) -> Iterator[Rows]:
    """Yield the vectors to compare exactly, in chunks."""
    count = _CANDIDATES + _CANDIDATES_EACH * limit
    # Changes of this transaction itself must not enter an index that others use.
    own = [kind for kind in kinds if changes.has_own(session, kind)]
    if among is not None and len(among) * len(kinds) <= count:
        own = kinds
    if among is None:
        yield from _read_all(session, own, model, wanted.size)
    else:
        yield from _read_some(session, [(kind, item_id) for kind in own for item_id in among], model, wanted.size)
    others = [kind for kind in kinds if kind not in set(own)]
    if others:
        yield from _read_nearest(session, others, model, wanted, count, among)


def _read_nearest(
    session: Session, kinds: list[str], model: str, wanted: Floats, count: int, among: Sequence[int] | None
) -> Iterator[Rows]:
    indexes = memory.current(session, kinds, model, wanted.size)
    if among is None and sum(len(index.ids) for index in indexes) * wanted.size <= _EXACT_VALUES:
        yield from _read_all(session, kinds, model, wanted.size)
        return
    only = None if among is None else np.array(among, np.int64)
    for clean in (False, True):
        if clean:
            indexes = memory.current(session, kinds, model, wanted.size, clean=True)
        chosen = nearest(indexes, wanted, count, only)
        items = [(kind, item_id) for kind, ids in zip(kinds, chosen, strict=True) for item_id in ids.tolist()]
        chunks = list(_read_some(session, items, model, wanted.size))
        # Removed vectors take the places of others.
        if len(items) - sum(map(len, chunks)) <= len(items) * _MOST_REMOVED:
            break
    yield from chunks


def _read_all(session: Session, kinds: Sequence[str], model: str, dims: int) -> Iterator[Rows]:
    these = and_(one_of(session, VECTORS.c.kind, kinds), VECTORS.c.model == model, VECTORS.c.dims == dims)
    query = select(VECTORS.c.kind, VECTORS.c.item_id, VECTORS.c.data).where(these)
    if kinds:
        yield from session.execute(query.execution_options(yield_per=_CHUNK)).partitions()


def _read_some(session: Session, items: Sequence[tuple[str, int]], model: str, dims: int) -> Iterator[Rows]:
    # Model and length are compared below: in the query, they would make SQLite read the whole model by its index.
    columns = (VECTORS.c.kind, VECTORS.c.item_id, VECTORS.c.data, VECTORS.c.model, VECTORS.c.dims)
    for start in range(0, len(items), _CHUNK):
        these = pairs(session, items[start : start + _CHUNK])
        named = and_(VECTORS.c.kind == these.c.text, VECTORS.c.item_id == these.c.number)
        rows = session.execute(select(*columns).join_from(these, VECTORS, named)).all()
        yield [(kind, item_id, data) for kind, item_id, data, *has in rows if has == [model, dims]]


def _compared(
    read: Iterator[Rows], kinds: Sequence[str], unit: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Return (indexes of the kinds, ids, cosines) of all vectors."""
    place = {kind: number for number, kind in enumerate(kinds)}
    places, ids, scores = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for rows in read:
        places.append(np.array([place[kind] for kind, _, _ in rows], np.int64))
        ids.append(np.array([item_id for _, item_id, _ in rows], np.int64))
        matrix = np.frombuffer(b"".join([data for _, _, data in rows]), dtype="<f4").reshape(len(rows), unit.size)
        # A vector of zeros is similar to none.
        norms = np.maximum(np.linalg.norm(matrix, axis=1), np.finfo(np.float32).tiny)
        scores.append(np.einsum("ij,j->i", matrix, unit) / norms)
    return np.concatenate(places), np.concatenate(ids), np.concatenate(scores)

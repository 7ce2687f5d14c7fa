"""Vectors of anything, as float32 rows, on SQLite and PostgreSQL alike.

A search compares the query with the codes of all vectors, which are in memory (`index` says how much of it), and then
exactly with the few hundred vectors whose codes are nearest. A small collection is compared exactly as a whole.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from pipeline.engine import tables
from pipeline.storage.vectors import changes, codes, index
from pipeline.storage.vectors.codes import Floats
from pipeline.storage.vectors.index import Collection
from pipeline.storage.vectors.models import CODES, VECTORS

__all__ = ["Floats", "Hit", "get", "pack", "remove", "search", "unpack", "upsert"]
_CHUNK = 4000
"""Vectors that a search holds in memory at once."""
_PORTION = 500
_EXACT_VALUES = 2_000_000
"""Collections of up to this many numbers are compared exactly: 2,000 vectors of 1,000 take some 20 ms."""
_SPARE, _SPARE_EACH = 600, 2
"""Vectors that are compared exactly: this many, and this many more for each hit that is wanted."""


@dataclass(frozen=True)
class Hit:
    """An item that was found; `score` is the cosine, -1 to 1."""

    item_id: int
    score: float


def pack(vectors: Sequence[Sequence[float]]) -> bytes:
    """Vectors of one length as bytes. Raises `ValueError` if lengths differ or a number is not finite."""
    matrix = np.asarray(vectors, dtype="<f4")
    if matrix.ndim != 2 or not matrix.shape[1] or not bool(np.isfinite(matrix).all()):
        raise ValueError("vectors must be finite, not empty, and of one length")
    return matrix.tobytes()


def unpack(data: bytes, count: int) -> Floats:
    """The matrix of `count` vectors that `pack` wrote. Raises `ValueError` if the bytes do not fit."""
    return np.frombuffer(data, dtype="<f4").reshape(count, -1)


def upsert(
    session: Session, kind: str, model: str, rows: Iterable[tuple[int, Sequence[float] | Floats]], now: datetime
) -> int:
    """Store vectors of items, in the caller's transaction; how many."""
    values = [(item_id, np.asarray(vector, dtype="<f4")) for item_id, vector in rows]
    for start in range(0, len(values), _PORTION):
        portion = values[start : start + _PORTION]
        key = [{"kind": kind, "item_id": item_id, "model": model, "dims": len(vector)} for item_id, vector in portion]
        data = [{"data": vector.tobytes(), "updated_at": now} for _, vector in portion]
        coded = [{"code": code, "version": changes.UNSTAMPED} for code in _encoded([vector for _, vector in portion])]
        tables.upsert(session, VECTORS, [a | b for a, b in zip(key, data, strict=True)])
        tables.upsert(session, CODES, [a | b for a, b in zip(key, coded, strict=True)])
        changes.note(session, kind)
    return len(values)


def _encoded(vectors: Sequence[Floats]) -> list[bytes]:
    """Their codes. Vectors of one call usually have one length, but need not."""
    if len({len(vector) for vector in vectors}) == 1:
        return codes.encode(np.stack(vectors))
    return [codes.encode(vector[np.newaxis])[0] for vector in vectors]


def remove(session: Session, kind: str, item_ids: Sequence[int]) -> None:
    """Forget the vectors of items; harmless where there are none."""
    for start in range(0, len(item_ids), _PORTION):
        portion = item_ids[start : start + _PORTION]
        session.execute(delete(VECTORS).where(VECTORS.c.kind == kind, VECTORS.c.item_id.in_(portion)))
        gone = delete(CODES).where(CODES.c.kind == kind, CODES.c.item_id.in_(portion))
        if session.execute(gone.returning(CODES.c.item_id)).all():
            changes.note(session, kind, removed=True)


def get(session: Session, kind: str, item_id: int) -> tuple[str, Floats] | None:
    """(model, vector) of an item; None if it has none."""
    query = select(VECTORS.c.model, VECTORS.c.data).where(VECTORS.c.kind == kind, VECTORS.c.item_id == item_id)
    row = session.execute(query).one_or_none()
    return (row.model, np.frombuffer(row.data, dtype="<f4")) if row else None


def search(
    session: Session, kind: str, model: str, vector: Sequence[float] | Floats, limit: int, *,
    without: int | None = None, among: Sequence[int] | None = None,
) -> list[Hit]:  # fmt: skip
    """The items most like `vector`, best first; `among`: only of these. Sees what this transaction has written.

    Scores are exact. Of a large collection one of the best may be missed: less than one in a hundred is.
    """
    wanted = np.asarray(vector, dtype=np.float32)
    norm = float(np.linalg.norm(wanted))
    if limit < 1 or norm == 0:
        return []
    of = Collection(kind, model, wanted.size)
    read = _read(session, of, wanted, limit + (without is not None), among)
    ids, scores = _compared(read, wanted / np.float32(norm))
    keep = ids != without if without is not None else np.ones(len(ids), bool)
    ids, scores = ids[keep], scores[keep]
    best = np.lexsort((ids, -scores))[:limit]
    return [Hit(int(ids[i]), float(scores[i])) for i in best]


Rows = Sequence[tuple[int, bytes]]


def _read(session: Session, of: Collection, wanted: Floats, limit: int, among: Sequence[int] | None) -> Iterator[Rows]:
    """The vectors to compare exactly, in chunks."""
    count = _SPARE + _SPARE_EACH * limit
    chosen = None if among is None else np.array(among, np.int64)
    # What this transaction itself has changed must not enter an index that others use.
    if not changes.has_own(session, of.kind) and (chosen is None or len(chosen) > count):
        known = index.current(session, of)
        if chosen is not None or len(known.ids) * of.dims > _EXACT_VALUES:
            chosen = known.nearest(wanted, count, chosen)
    return _read_all(session, of) if chosen is None else _read_some(session, of, np.sort(chosen).tolist())


def _read_all(session: Session, of: Collection) -> Iterator[Rows]:
    query = select(VECTORS.c.item_id, VECTORS.c.data).where(
        VECTORS.c.kind == of.kind, VECTORS.c.model == of.model, VECTORS.c.dims == of.dims
    )
    for rows in session.execute(query.execution_options(yield_per=_CHUNK)).partitions():
        yield [(item_id, data) for item_id, data in rows]


def _read_some(session: Session, of: Collection, ids: list[int]) -> Iterator[Rows]:
    sqlite = session.get_bind().dialect.name == "sqlite"
    # One parameter: hundreds take longer to compile than their rows to read.
    these = text("item_id IN (SELECT value FROM json_each(:ids))" if sqlite else "item_id = ANY(:ids)")
    # Model and length are compared below: given them, SQLite would read the whole model by its index.
    columns = (VECTORS.c.item_id, VECTORS.c.model, VECTORS.c.dims, VECTORS.c.data)
    query = select(*columns).where(VECTORS.c.kind == of.kind, these)
    for start in range(0, len(ids), _PORTION):
        portion = ids[start : start + _PORTION]
        rows = session.execute(query, {"ids": json.dumps(portion) if sqlite else portion}).all()
        yield [(item_id, data) for item_id, model, dims, data in rows if (model, dims) == (of.model, of.dims)]


def _compared(read: Iterator[Rows], unit: Floats) -> tuple[NDArray[np.int64], Floats]:
    """(ids, cosines) of all."""
    ids, scores = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for rows in read:
        ids.append(np.array([item_id for item_id, _ in rows], np.int64))
        matrix = np.frombuffer(b"".join([data for _, data in rows]), dtype="<f4").reshape(len(rows), unit.size)
        # A vector of zeros is like nothing.
        norms = np.maximum(np.linalg.norm(matrix, axis=1), np.finfo(np.float32).tiny)
        scores.append((matrix @ unit) / norms)
    return np.concatenate(ids), np.concatenate(scores)

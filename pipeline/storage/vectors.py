"""Vectors of anything: float32 rows beside what they belong to, searched with NumPy, on SQLite and PostgreSQL alike."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Index, Integer, LargeBinary, String, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from pipeline.engine import tables
from pipeline.engine.tables import Base, UtcDateTime, table_of

Floats = NDArray[np.float32]
_CHUNK = 4000
"""Vectors that are in memory at once during a search."""
_PORTION = 500


class StoredVector(Base):
    """One vector. An item of a kind has one at most; another model's replaces it."""

    __tablename__ = "vectors"
    __table_args__ = (Index("ix_vectors_kind_model", "kind", "model"),)

    kind: Mapped[str] = mapped_column(String(40), primary_key=True)
    """What it belongs to, such as `song`."""
    item_id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    model: Mapped[str] = mapped_column(String(200))
    """Only vectors of one model can be compared."""
    dims: Mapped[int]
    data: Mapped[bytes] = mapped_column(LargeBinary)
    """`dims` little-endian float32."""
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


VECTORS = table_of(StoredVector)


@dataclass(frozen=True)
class Hit:
    """An item that was found; `score` is the cosine, -1 to 1."""

    item_id: int
    score: float


def pack(vectors: Sequence[Sequence[float]]) -> bytes:
    """Vectors of one length as bytes. Raises `ValueError` for lengths that differ or numbers that are not finite."""
    matrix = np.asarray(vectors, dtype="<f4")
    if matrix.ndim != 2 or not matrix.shape[1] or not bool(np.isfinite(matrix).all()):
        raise ValueError("vectors must be finite, not empty, and of one length")
    return matrix.tobytes()


def unpack(data: bytes, count: int) -> Floats:
    """What `pack` made of `count` vectors, as a matrix. Raises `ValueError` if that cannot be."""
    return np.frombuffer(data, dtype="<f4").reshape(count, -1)


def upsert(
    session: Session, kind: str, model: str, rows: Iterable[tuple[int, Sequence[float] | Floats]], now: datetime
) -> int:
    """Store vectors of items, in the caller's transaction; how many."""
    values = [
        {
            "kind": kind, "item_id": item_id, "model": model, "dims": len(vector),
            "data": np.asarray(vector, dtype="<f4").tobytes(), "updated_at": now,
        }
        for item_id, vector in rows
    ]  # fmt: skip
    for start in range(0, len(values), _PORTION):
        tables.upsert(session, VECTORS, values[start : start + _PORTION])
    return len(values)


def remove(session: Session, kind: str, item_ids: Sequence[int]) -> None:
    """Forget the vectors of items; harmless where there are none."""
    for start in range(0, len(item_ids), _PORTION):
        portion = item_ids[start : start + _PORTION]
        session.execute(delete(VECTORS).where(VECTORS.c.kind == kind, VECTORS.c.item_id.in_(portion)))


def get(session: Session, kind: str, item_id: int) -> tuple[str, Floats] | None:
    """(model, vector) of an item; None if it has none."""
    query = select(VECTORS.c.model, VECTORS.c.data).where(VECTORS.c.kind == kind, VECTORS.c.item_id == item_id)
    row = session.execute(query).one_or_none()
    return (row.model, np.frombuffer(row.data, dtype="<f4")) if row else None


def search(
    session: Session, kind: str, model: str, vector: Sequence[float] | Floats, limit: int, *, without: int | None = None
) -> list[Hit]:
    """The items most like `vector`, best first. Reads in chunks: memory does not grow with what is stored."""
    wanted = np.asarray(vector, dtype=np.float32)
    norm = float(np.linalg.norm(wanted))
    if limit < 1 or norm == 0:
        return []
    query = select(VECTORS.c.item_id, VECTORS.c.data).where(
        VECTORS.c.kind == kind, VECTORS.c.model == model, VECTORS.c.dims == wanted.size
    )
    best: list[tuple[float, int]] = []
    for rows in session.execute(query.execution_options(yield_per=_CHUNK)).partitions():
        ids = np.array([row.item_id for row in rows])
        matrix = np.frombuffer(b"".join(row.data for row in rows), dtype="<f4").reshape(len(rows), -1)
        # A vector of zeros is like nothing.
        norms = np.maximum(np.linalg.norm(matrix, axis=1), np.finfo(np.float32).tiny)
        scores = (matrix @ wanted) / (norms * norm)
        top = np.argsort(-scores)[: limit + 1]
        found = [(float(scores[i]), -int(ids[i])) for i in top if int(ids[i]) != without]
        best = heapq.nlargest(limit, [*best, *found])
    return [Hit(-negative, score) for score, negative in best]

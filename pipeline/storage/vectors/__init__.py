"""Vectors of any kind as float32 rows, on SQLite and PostgreSQL alike. `nearest` searches them.

numpy is imported with the first vector, since status queries load flows that store vectors.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from pipeline.engine import tables
from pipeline.engine.transaction import Tx
from pipeline.storage.lists import pairs
from pipeline.storage.vectors import changes
from pipeline.storage.vectors.models import CODES, VECTORS

if TYPE_CHECKING:
    from pipeline.storage.vectors.codes import Floats

_PORTION = 500


def pack(vectors: Sequence[Sequence[float]]) -> bytes:
    """Return vectors of one length as little-endian float32 bytes. Raises `ValueError` if there are none, lengths
    differ, or a number is not finite."""
    import numpy as np

    with np.errstate(over="ignore"):  # too large numbers become infinite, and are refused
        matrix = np.asarray(vectors, dtype="<f4")
    if matrix.ndim != 2 or not matrix.shape[1] or not bool(np.isfinite(matrix).all()):
        raise ValueError("vectors must be finite, not empty, and of one length")
    return matrix.tobytes()


def unpack(data: bytes, count: int) -> "Floats":
    """Return the matrix of `count` vectors that `pack` wrote. Raises `ValueError` if the bytes do not fit."""
    import numpy as np

    return np.frombuffer(data, dtype="<f4").reshape(count, -1)


def upsert(tx: Tx, kind: str, model: str, rows: Iterable[tuple[int, "Sequence[float] | Floats"]]) -> int:
    """Store vectors of items, in place of earlier ones of any model, in the caller's transaction; return how many."""
    import numpy as np

    from pipeline.storage.vectors import codes

    values = [(item_id, np.asarray(vector, dtype="<f4")) for item_id, vector in rows]
    for start in range(0, len(values), _PORTION):
        portion = values[start : start + _PORTION]
        key = [{"kind": kind, "item_id": item_id, "model": model, "dims": len(vector)} for item_id, vector in portion]
        data = [{"data": vector.tobytes(), "updated_at": tx.now} for _, vector in portion]
        coded = [
            {"code": code, "version": changes.UNSTAMPED} for code in codes.encode_any([vector for _, vector in portion])
        ]
        tables.upsert(tx, VECTORS, [a | b for a, b in zip(key, data, strict=True)])
        tables.upsert(tx, CODES, [a | b for a, b in zip(key, coded, strict=True)])
        changes.note(tx, kind)
    return len(values)


def remove(session: Session, kind: str, item_ids: Sequence[int]) -> None:
    """Delete the vectors of items; harmless for items without vectors."""
    for start in range(0, len(item_ids), _PORTION):
        portion = item_ids[start : start + _PORTION]
        session.execute(delete(VECTORS).where(VECTORS.c.kind == kind, VECTORS.c.item_id.in_(portion)))
        removal = delete(CODES).where(CODES.c.kind == kind, CODES.c.item_id.in_(portion))
        if session.execute(removal.returning(CODES.c.item_id)).all():
            changes.note(session, kind, removed=True)


def get(session: Session, kind: str, item_id: int) -> "tuple[str, Floats] | None":
    """Return (model, vector) of an item; None without a vector."""
    import numpy as np

    query = select(VECTORS.c.model, VECTORS.c.data).where(VECTORS.c.kind == kind, VECTORS.c.item_id == item_id)
    row = session.execute(query).one_or_none()
    return (row.model, np.frombuffer(row.data, dtype="<f4")) if row else None


def stored(session: Session, kind: str, model: str, item_ids: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield (item, its vector as little-endian float32) for those of these items with a vector of this model."""
    for portion in tables.portions(item_ids, _PORTION):
        query = select(VECTORS.c.item_id, VECTORS.c.data).where(
            VECTORS.c.kind == kind, VECTORS.c.item_id.in_(portion), VECTORS.c.model == model
        )
        yield from ((row.item_id, row.data) for row in session.execute(query))


def models_of(session: Session, kinds: Sequence[str]) -> dict[str, list[str]]:
    """Return, by model, the kinds that have vectors of it."""
    wanted = pairs(session, [(kind, 0) for kind in kinds])
    # Step from model to model by the index: a kind has few models and many vectors.
    least = select(func.min(VECTORS.c.model)).where(VECTORS.c.kind == wanted.c.text).scalar_subquery()
    models_found = select(wanted.c.text.label("kind"), least.label("model")).cte("models", recursive=True)
    higher = select(func.min(VECTORS.c.model)).where(
        VECTORS.c.kind == models_found.c.kind, VECTORS.c.model > models_found.c.model
    )
    steps = models_found.union_all(
        select(models_found.c.kind, higher.scalar_subquery()).where(models_found.c.model.is_not(None))
    )
    models: dict[str, list[str]] = {}
    for kind, model in session.execute(select(steps.c.kind, steps.c.model).where(steps.c.model.is_not(None))):
        models.setdefault(model, []).append(kind)
    return models

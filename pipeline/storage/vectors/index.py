"""The codes of a collection in memory, brought up to date before each search by reading what changed since.

Memory: 136 bytes a vector of up to 1,024 dimensions, 264 at most (13.6 MB for 100,000 vectors of 1,024), for the
`MOST_KEPT` collections of a database that were searched last; twice that during a change. It is freed with the
database's connections.
"""

import os
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import Pool

from pipeline.storage.vectors import changes, codes
from pipeline.storage.vectors.codes import Floats, Words
from pipeline.storage.vectors.models import CODES

MOST_KEPT = 4
_CHUNK = 10_000
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Collection:
    """Vectors that can be compared with one another."""

    kind: str
    model: str
    dims: int


@dataclass(frozen=True)
class Index:
    """The codes of a collection as of a version. Never changed: a newer one replaces it."""

    version: int
    ids: Ids
    words: Words
    """(words, n)"""

    def nearest(self, vector: Floats, count: int, among: Ids | None = None) -> Ids:
        """Roughly the nearest items, in no order; `among`: only of these."""
        ids, words = self.ids, self.words
        if among is not None:
            keep = np.flatnonzero(np.isin(ids, among))
            ids, words = ids[keep], words[:, keep]
        if len(ids) <= count:
            return ids
        return ids[np.argpartition(-codes.likeness(words, vector), count)[:count]]


class _Kept:
    """Indexes of one database; the last one was used last."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.indexes: OrderedDict[Collection, Index] = OrderedDict()


_kept: WeakKeyDictionary[Pool, _Kept] = WeakKeyDictionary()
_lock = Lock()


def current(session: Session, of: Collection) -> Index:
    """The index as this transaction, or one that began later, sees the database. Safe in many threads."""
    version, removed = changes.seen(session, of.kind)
    kept = _kept_of(session)
    # One thread reads for all; each has its connection already, so none waits for another's.
    with kept.lock:
        known = kept.indexes.get(of)
        # An older version than the known one: a transaction that began earlier, or a restored backup.
        if known is None or known.version > version:
            known = _load(session, of, version)
        elif known.version < version:
            known = _advanced(session, of, known, version, removed)
        kept.indexes[of] = known
        kept.indexes.move_to_end(of)
        while len(kept.indexes) > MOST_KEPT:
            kept.indexes.popitem(last=False)
        return known


def _load(session: Session, of: Collection, version: int) -> Index:
    query = select(CODES.c.item_id, CODES.c.code).where(_belongs(of)).execution_options(yield_per=_CHUNK)
    ids, words = [], []
    for rows in session.execute(query).partitions():
        numbers, parts = zip(*rows, strict=True)
        ids.append(np.array(numbers, np.int64))
        words.append(codes.words_of(parts, of.dims))
    return Index(version, *_joined(of, ids, words))


def _advanced(session: Session, of: Collection, known: Index, version: int, removed: int) -> Index:
    since = and_(CODES.c.kind == of.kind, CODES.c.version > known.version)
    rows = session.execute(select(CODES.c.item_id, CODES.c.model, CODES.c.dims, CODES.c.code).where(since)).all()
    fresh = [row for row in rows if (row.model, row.dims) == (of.model, of.dims)]
    # What changed may have another model's vector now.
    stay = np.flatnonzero(~np.isin(known.ids, np.array([row.item_id for row in rows], np.int64)))
    parts = [known.ids[stay], np.array([row.item_id for row in fresh], np.int64)]
    ids, words = _joined(of, parts, [known.words[:, stay], codes.words_of([row.code for row in fresh], of.dims)])
    if removed > known.version:
        left = np.array(session.execute(select(CODES.c.item_id).where(_belongs(of))).scalars().all(), np.int64)
        here = np.flatnonzero(np.isin(ids, left))
        ids, words = ids[here], words[:, here]
    return Index(version, ids, words)


def _joined(of: Collection, ids: list[Ids], words: list[Words]) -> tuple[Ids, Words]:
    nothing = np.zeros(0, np.int64), codes.words_of([], of.dims)
    return np.concatenate([nothing[0], *ids]), np.concatenate([nothing[1], *words], axis=1)


def _belongs(of: Collection) -> ColumnElement[bool]:
    return and_(CODES.c.kind == of.kind, CODES.c.model == of.model, CODES.c.dims == of.dims)


def _kept_of(session: Session) -> _Kept:
    # By the database's pool, not its URL: another file may take that name.
    pool = session.connection().engine.pool
    with _lock:
        return _kept.setdefault(pool, _Kept())


def _after_fork() -> None:
    # A lock that another thread held at the fork would never be released.
    global _lock  # noqa: PLW0603
    _lock = Lock()
    for kept in _kept.values():
        kept.lock = Lock()


os.register_at_fork(after_in_child=_after_fork)

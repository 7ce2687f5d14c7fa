"""Indexes in memory, updated before each search with the changes since the last.

Memory: 136 bytes for a vector of up to 1,024 dimensions, 264 at most (13.6 MB for 100,000 vectors of 1,024), up to
`BUDGET` bytes per database for the latest searches; twice that for a collection during its update. It is freed with the
database's connections.
"""

import os
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import Pool

from pipeline.storage.lists import one_of, pairs
from pipeline.storage.vectors import changes, codes
from pipeline.storage.vectors.codes import Words
from pipeline.storage.vectors.index import Collection, Ids, Index
from pipeline.storage.vectors.models import CODES

BUDGET = 256_000_000
"""Enough for 1.9 million vectors of up to 1,024 dimensions."""
_CHUNK = 10_000
_LOCKS = 64
_LONGEST_S = 60.0
"""The longest duration of a search's transaction."""
Versions = Mapping[Collection, int]


class _Kept:
    """The indexes of one database, the most recently used last."""

    def __init__(self) -> None:
        self.indexes: OrderedDict[Collection, Index] = OrderedDict()
        self.renew()

    def renew(self) -> None:
        """Create new locks, also after a fork: threads that held the old ones would never release them."""
        self.lock = Lock()
        self._reading = [Lock() for _ in range(_LOCKS)]

    @contextmanager
    def reading(self, collections: Iterable[Collection]) -> Iterator[None]:
        """Let one thread read a collection for all; each has its connection already, so none waits for another's."""
        with ExitStack() as held:
            # Sorted, so that threads do not deadlock.
            for place in sorted({hash(of) % _LOCKS for of in collections}):
                held.enter_context(self._reading[place])
            yield

    def known(self, wanted: Iterable[Collection]) -> dict[Collection, Index]:
        with self.lock:
            known = {of: self.indexes[of] for of in wanted if of in self.indexes}
            for of in known:
                self.indexes.move_to_end(of)
            return known

    def keep(self, fresh: Mapping[Collection, Index]) -> None:
        with self.lock:
            for of, index in fresh.items():
                known = self.indexes.get(of)
                # An index of a transaction that began earlier is useless to others.
                if known is None or known.version <= index.version or _restored(known, index.version):
                    self.indexes[of] = index
                    self.indexes.move_to_end(of)
            size = sum(index.size for index in self.indexes.values())
            while size > BUDGET:
                size -= self.indexes.popitem(last=False)[1].size


_kept: WeakKeyDictionary[Pool, _Kept] = WeakKeyDictionary()
_lock = Lock()


def current(session: Session, kinds: Sequence[str], model: str, dims: int, *, clean: bool = False) -> list[Index]:
    """Return an index of each kind's vectors of a model, in the order of `kinds`, as this or a later transaction sees
    the database.

    Removed vectors may remain in them, unless `clean`, which takes long. Safe in many threads.
    """
    cache = _kept_of(session)
    seen = {Collection(kind, model, dims): version for kind, version in changes.versions(session, kinds).items()}

    def usable() -> dict[Collection, Index]:
        views = {of: _view(index, seen[of], clean) for of, index in cache.known(seen).items()}
        return {of: view for of, view in views.items() if view is not None}

    result = usable()
    missing = [of for of in seen if of not in result]
    if missing:
        with cache.reading(missing):
            result |= usable()
            known = cache.known(of for of in missing if of not in result)
            behind = {of: index for of, index in known.items() if index.version <= seen[of].version}
            fresh = _advanced(session, behind, seen, clean=clean)
            fresh |= _loaded(session, {of: seen[of].version for of in missing if of not in result and of not in behind})
            cache.keep(fresh)
            result |= fresh
    return [result[Collection(kind, model, dims)] for kind in kinds]


def _view(index: Index, seen: changes.Version, clean: bool) -> Index | None:
    """Return the index for a transaction that sees this version. None: it must be read anew."""
    if _restored(index, seen.version) or (clean and index.cleaned < seen.removed):
        return None
    return index.as_of(seen.version)


def _restored(known: Index, version: int) -> bool:
    """Whether the version has decreased for longer than any transaction lasts: a backup was restored."""
    return version < known.version and time.monotonic() - known.read_at > _LONGEST_S


def _loaded(session: Session, versions: Versions) -> dict[Collection, Index]:
    read_at = time.monotonic()
    query = select(CODES.c.kind, CODES.c.item_id, CODES.c.code).where(_belong(session, versions))
    parts: dict[str, list[tuple[Ids, Words]]] = defaultdict(list)
    for rows in session.execute(query.execution_options(yield_per=_CHUNK)).partitions() if versions else ():
        rows_of: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for kind, item_id, code in rows:
            rows_of[kind].append((item_id, code))
        for kind, kind_rows in rows_of.items():
            parts[kind].append(_arrays(kind_rows, next(iter(versions)).dims))
    loaded = {}
    for of, version in versions.items():
        ids, words = zip(_arrays([], of.dims), *parts.pop(of.kind, []), strict=True)
        loaded[of] = Index(
            version, np.concatenate(ids), np.concatenate(words, axis=1), read_at, cleaned=version, since=version
        )
    return loaded


def _advanced(
    session: Session, behind: Mapping[Collection, Index], seen: Mapping[Collection, changes.Version], *, clean: bool
) -> dict[Collection, Index]:
    read_at = time.monotonic()
    since = pairs(session, [(of.kind, index.version) for of, index in behind.items()])
    newer = and_(CODES.c.kind == since.c.text, CODES.c.version > since.c.number)
    columns = (CODES.c.kind, CODES.c.item_id, CODES.c.model, CODES.c.dims, CODES.c.code)
    rows: dict[str, list[Any]] = defaultdict(list)
    for row in session.execute(select(*columns).join_from(since, CODES, newer)) if behind else ():
        rows[row.kind].append(row)
    advanced = {}
    for of, index in behind.items():
        # A changed item may now have another model's vector.
        own = [(row.item_id, row.code) for row in rows[of.kind] if (row.model, row.dims) == (of.model, of.dims)]
        changed = np.array([row.item_id for row in rows[of.kind]], np.int64)
        advanced[of] = index.changed(seen[of].version, read_at, changed, *_arrays(own, of.dims))
    return _cleaned(session, advanced, seen) if clean else advanced


def _cleaned(
    session: Session, indexes: Mapping[Collection, Index], seen: Mapping[Collection, changes.Version]
) -> dict[Collection, Index]:
    remaining: dict[str, list[int]] = defaultdict(list)
    query = select(CODES.c.kind, CODES.c.item_id).where(_belong(session, indexes))
    for kind, item_id in session.execute(query) if indexes else ():
        remaining[kind].append(item_id)
    cleaned = {}
    for of, index in indexes.items():
        removed = np.setdiff1d(index.ids, np.array(remaining[of.kind], np.int64))
        less = index.changed(index.version, index.read_at, removed, *_arrays([], of.dims))
        cleaned[of] = replace(less, cleaned=seen[of].version)
    return cleaned


def _arrays(rows: Sequence[tuple[int, bytes]], dims: int) -> tuple[Ids, Words]:
    return np.array([item_id for item_id, _ in rows], np.int64), codes.words_of([code for _, code in rows], dims)


def _belong(session: Session, collections: Iterable[Collection]) -> ColumnElement[bool]:
    """Return the condition that a row belongs to one of these collections, which share model and length."""
    first = next(iter(collections), Collection("", "", 0))
    kinds = one_of(session, CODES.c.kind, [of.kind for of in collections])
    return and_(kinds, CODES.c.model == first.model, CODES.c.dims == first.dims)


def _kept_of(session: Session) -> _Kept:
    # By the database's pool, not its URL: another file may take the same name.
    pool = session.connection().engine.pool
    with _lock:
        return _kept.setdefault(pool, _Kept())


def _after_fork() -> None:
    global _lock  # noqa: PLW0603
    _lock = Lock()
    for cache in _kept.values():
        cache.renew()


os.register_at_fork(after_in_child=_after_fork)

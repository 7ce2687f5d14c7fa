"""The codes of collections, and the search among them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.storage.vectors import codes
from pipeline.storage.vectors.codes import Floats, Words

Ids = NDArray[np.int64]


def none() -> Ids:
    return np.zeros(0, np.int64)


_OVERHEAD = 1000
"""Bytes of an index beside its numbers."""
_BLOCK = 65_536
"""Codes of small collections that are put together, to be compared at once."""
_MOST_RECENT = 2000


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
    read_at: float
    """When this process first saw this version, by its monotonic clock."""
    cleaned: int
    """What this version or an earlier one removed is not here any more."""
    since: int
    recent: Ids = field(default_factory=none)
    """What changed after the version `since`, the latest last …"""
    recent_versions: Ids = field(default_factory=none)
    """… and the versions by which it did, or later ones."""
    doubtful: Ids = field(default_factory=none)
    """What a search must compare whatever its code says."""

    @property
    def size(self) -> int:
        """Bytes."""
        return self.ids.nbytes + self.words.nbytes + 2 * self.recent.nbytes + _OVERHEAD

    def as_of(self, version: int) -> "Index | None":
        """This, for a transaction that sees an older version: what changed since is doubtful. None: too much did."""
        if version == self.version:
            return self
        if not self.since <= version < self.version:
            return None
        return replace(self, doubtful=self.recent[self.recent_versions > version])

    def changed(self, version: int, read_at: float, changed: Ids, ids: Ids, words: Words) -> "Index":
        """The next one: of `changed`, `ids` and `words` are what is in this collection now."""
        recent = np.concatenate([self.recent, changed])
        versions = np.concatenate([self.recent_versions, np.full(len(changed), version)])
        since = self.since
        if len(recent) > _MOST_RECENT:
            since = int(versions[-_MOST_RECENT - 1])
            recent, versions = recent[versions > since], versions[versions > since]
        # What stays is copied as it lies, and the last fill the gaps: to pick 100,000 columns takes far longer.
        gaps = np.flatnonzero(np.isin(self.ids, changed))
        count = len(self.ids) - len(gaps)
        gaps, last = gaps[gaps < count], np.setdiff1d(np.arange(count, len(self.ids)), gaps)
        all_ids = np.concatenate([self.ids[:count], ids])
        all_words = np.concatenate([self.words[:, :count], words], axis=1)
        all_ids[gaps], all_words[:, gaps] = self.ids[last], self.words[:, last]
        return replace(
            self,
            version=version,
            read_at=read_at,
            ids=all_ids,
            words=all_words,
            since=since,
            recent=recent,
            recent_versions=versions,
        )


def nearest(indexes: Sequence[Index], vector: Floats, count: int, among: Ids | None = None) -> list[Ids]:
    """Roughly the nearest items of all together, by index, in no order; `among`: only of these."""
    if among is not None:
        indexes = [_part(each, among) for each in indexes]
    likeness = np.concatenate([np.zeros(0, np.float32), *_likeness([each.words for each in indexes], vector)])
    chosen = np.arange(len(likeness))
    if len(likeness) > count:
        chosen = np.sort(np.argpartition(-likeness, count)[:count])
    found, begin = [], 0
    for each in indexes:
        end = begin + len(each.ids)
        first, last = np.searchsorted(chosen, [begin, end])
        found.append(np.union1d(each.ids[chosen[first:last] - begin], each.doubtful))
        begin = end
    return found


def _part(index: Index, among: Ids) -> Index:
    keep = np.flatnonzero(np.isin(index.ids, among))
    doubtful = index.doubtful[np.isin(index.doubtful, among)]
    return replace(index, ids=index.ids[keep], words=index.words[:, keep], doubtful=doubtful)


def _likeness(parts: Sequence[Words], vector: Floats) -> Iterator[Floats]:
    query = codes.Query.of(vector)
    begin = size = 0
    for at, part in enumerate(parts, 1):
        size += part.shape[1]
        if size >= _BLOCK or at == len(parts):
            # Of many small ones each would take as long as a large one. One alone is not copied.
            yield query.likeness(np.concatenate(parts[begin:at], axis=1) if at - begin > 1 else part)
            begin, size = at, 0

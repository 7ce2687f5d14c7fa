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
"""Bytes of an index besides its numbers."""
_BLOCK = 65_536
"""The codes of small collections are concatenated up to this number, and compared at once."""
_MOST_RECENT = 2000


@dataclass(frozen=True)
class Collection:
    """Vectors that can be compared with one another."""

    kind: str
    model: str
    dims: int


@dataclass(frozen=True)
class Index:
    """The codes of a collection as of a version. Immutable: a newer index replaces it."""

    version: int
    ids: Ids
    words: Words
    """(words, n)"""
    read_at: float
    """When this process first saw this version (monotonic time)."""
    cleaned: int
    """Vectors removed by this version or an earlier one are no longer here."""
    since: int
    recent: Ids = field(default_factory=none)
    """Items changed after the version `since`, the latest last …"""
    recent_versions: Ids = field(default_factory=none)
    """… and the version of each change, or a later one."""
    doubtful: Ids = field(default_factory=none)
    """Items that a search must compare exactly, whatever their codes."""

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.ids.nbytes + self.words.nbytes + 2 * self.recent.nbytes + _OVERHEAD

    def as_of(self, version: int) -> "Index | None":
        """Return the index for a transaction that sees an older `version`: items that changed later are doubtful. None
        if the index no longer knows all later changes."""
        if version == self.version:
            return self
        if not self.since <= version < self.version:
            return None
        return replace(self, doubtful=self.recent[self.recent_versions > version])

    def changed(self, version: int, read_at: float, changed: Ids, ids: Ids, words: Words) -> "Index":
        """Return the index of `version`: the items `changed` leave it; `ids`, with their codes `words`, enter it, since
        they are in this collection now."""
        recent = np.concatenate([self.recent, changed])
        versions = np.concatenate([self.recent_versions, np.full(len(changed), version)])
        since = self.since
        if len(recent) > _MOST_RECENT:
            since = int(versions[-_MOST_RECENT - 1])
            recent, versions = recent[versions > since], versions[versions > since]
        # Kept columns stay in place and the last ones fill the gaps: selecting 100,000 columns takes far longer.
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
    """Return roughly the `count` nearest items of all indexes together, and all doubtful ones: for each index its ids,
    unordered. `among`: search only these."""
    if among is not None:
        indexes = [_part(index, among) for index in indexes]
    likeness = np.concatenate([np.zeros(0, np.float32), *_likeness([index.words for index in indexes], vector)])
    chosen = np.arange(len(likeness))
    if len(likeness) > count:
        chosen = np.sort(np.argpartition(-likeness, count)[:count])
    result, begin = [], 0
    for index in indexes:
        end = begin + len(index.ids)
        first, last = np.searchsorted(chosen, [begin, end])
        result.append(np.union1d(index.ids[chosen[first:last] - begin], index.doubtful))
        begin = end
    return result


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
            # Each small part would take as long as a large one. A single part is not copied.
            yield query.likeness(np.concatenate(parts[begin:at], axis=1) if at - begin > 1 else part)
            begin, size = at, 0

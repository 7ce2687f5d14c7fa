"""The workload of an item, by which items share the machine. Rules: docs/sources/knowledge.md#workload."""

import math


def workload(size_bytes: int, characters: int) -> int:
    """Return the workload: a file's size in bytes; for other items, half the characters of their text or address."""
    return size_bytes or math.ceil(characters / 2)


TEXT_SHARE = 0.05
"""The share of text in a file of `large_mb`; the others are fonts, pictures and markup."""


def is_large(cost: int, size_bytes: int, large_mb: float) -> bool:
    """Whether an item with the workload `cost` counts as large: a file (of `size_bytes`) from `large_mb` million on, a
    text from that of such a file on, as a sitemap of 500 pages has."""
    return cost >= large_mb * 1_000_000 * (1 if size_bytes else TEXT_SHARE)


def most_large(concurrency: int) -> int:
    """Return how many of the `concurrency` items under way at once may be large."""
    return max(1, concurrency // 2)

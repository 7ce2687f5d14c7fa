"""The workload of an item, by which items share the machine. Rules: docs/sources/knowledge.md#workload."""

import math


def workload(size_bytes: int, characters: int) -> int:
    """Return the workload: a file's size in bytes; for other items, half the characters of their text or address."""
    return size_bytes or math.ceil(characters / 2)


def is_large(cost: int, large_mb: float) -> bool:
    """Whether an item with the workload `cost` counts as large: from `large_mb` million on."""
    return cost >= large_mb * 1_000_000


def most_large(concurrency: int) -> int:
    """Return how many of the `concurrency` items under way at once may be large."""
    return max(1, concurrency // 2)

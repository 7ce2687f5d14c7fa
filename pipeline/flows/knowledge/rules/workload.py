"""What an item will cost, to share the machine by. Rules: docs/sources/knowledge.md#workload."""

import math


def workload(size_bytes: int, characters: int) -> int:
    """A file's size in bytes; of anything else, half of the characters of its text or address."""
    return size_bytes or math.ceil(characters / 2)


def is_large(cost: int, large_mb: float) -> bool:
    """Whether an item counts as large."""
    return cost >= large_mb * 1_000_000


def most_large(concurrency: int) -> int:
    """How many large items may be under way at once."""
    return max(1, concurrency // 2)

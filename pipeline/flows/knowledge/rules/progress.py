"""One percentage for an item. Rules: docs/sources/knowledge.md#progress."""

WRITING_SHARE = 0.1
"""How much of embedding and writing is writing."""


def read_progress(weight: int, fraction: float) -> int:
    """Percent while an item is read: `fraction` of it, 0 to 1, is done."""
    return min(99, int(weight * min(1.0, max(0.0, fraction))))


def embed_progress(weight: int, batches: int, left: int) -> int:
    """Percent while its batches are embedded. 100 is only for an item that is completed."""
    done = (batches - left) / batches if batches else 1.0
    return min(99, int(weight + (100 - weight) * (1 - WRITING_SHARE) * done))

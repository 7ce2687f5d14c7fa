"""One percentage for an item. Rules: docs/sources/knowledge.md#progress."""

WRITING_SHARE = 0.1
"""The share of writing in the progress of embedding and writing."""


def read_progress(weight: int, fraction: float) -> int:
    """Return the percentage, at most 99, of an item of which `fraction`, 0 to 1, is read. `weight`: the percent of
    reading."""
    return min(99, int(weight * min(1.0, max(0.0, fraction))))


def embed_progress(weight: int, batches: int, left: int, written: float = 0.0) -> int:
    """Return the percentage, at most 99, of an item of whose `batches` `left` have no vectors yet, and of whose vectors
    the share `written`, 0 to 1, is written. `weight`: the percent of reading, which precedes."""
    done = (batches - left) / batches if batches else 1.0
    return min(99, int(weight + (100 - weight) * ((1 - WRITING_SHARE) * done + WRITING_SHARE * written)))

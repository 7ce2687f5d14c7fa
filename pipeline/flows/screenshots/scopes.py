"""The flow's scopes, by which the launcher and messages name its work."""

from collections.abc import Iterable
from enum import StrEnum

FLOW = "screenshots"
_BATCH, _BUFFER, _FLUSH = "batch:", "buffer:", "flush:"


class Scope(StrEnum):
    """Scopes of collected work. Besides these, each batch and each buffer is a scope."""

    BATCHES = "batches"
    """Batches that wait for their turn."""
    MERGES = "merges"
    """Merges of nodes. Nodes without a merge partner come first."""
    MERGE_LANES = "merge-lanes"
    """Merges of nodes with a partner."""
    VECTORS = "vectors"
    """Vectors of nodes."""
    CAPTURES = "captures"
    """Captures of screens and windows, which beat launches."""

    @classmethod
    def all(cls) -> list[str]:
        """Return the scopes that may have work at any time; the work of one of these, or beat, launches the others."""
        return [cls.BATCHES, cls.MERGES, cls.VECTORS]


def scope_of(batch_id: int) -> str:
    """Return the scope of a batch."""
    return f"{_BATCH}{batch_id}"


def batch_ids(scopes: Iterable[str]) -> list[int]:
    """Return the ids of the batches among these scopes."""
    return [int(scope.removeprefix(_BATCH)) for scope in scopes if scope.startswith(_BATCH)]


def buffers_among(scopes: Iterable[str]) -> set[str]:
    """Return those of these scopes that are buffers, to flush or not."""
    return {scope for scope in scopes if scope.startswith((_BUFFER, _FLUSH))}


def buffer_of(source: str, *, flush: bool = False) -> str:
    """Return the scope that batches a source's buffer. `flush`: the scope that batches all its frames, however few."""
    return f"{_FLUSH if flush else _BUFFER}{source}"

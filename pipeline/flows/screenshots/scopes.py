"""What work of the flow is launched by: scopes, as the launcher and messages name them."""

from collections.abc import Iterable
from enum import StrEnum

FLOW = "screenshots"
_BATCH, _BUFFER, _FLUSH = "batch:", "buffer:", "flush:"


class Scope(StrEnum):
    """What is launched as a whole, beside each batch that is on its way to nodes."""

    BATCHES = "batches"
    """Those that wait for their turn."""
    MERGES = "merges"
    """Of nodes. Nodes without a merge partner come first."""
    MERGE_LANES = "merge-lanes"
    """The others."""
    VECTORS = "vectors"
    """Of nodes."""
    CAPTURES = "captures"
    """Of screens and windows: beat asks for them."""

    @classmethod
    def all(cls) -> list[str]:
        """All but what begins by itself when another one ends."""
        return [cls.BATCHES, cls.MERGES, cls.VECTORS]


def scope_of(batch_id: int) -> str:
    """What a batch is launched by."""
    return f"{_BATCH}{batch_id}"


def batch_ids(scopes: Iterable[str]) -> list[int]:
    """The batches among these scopes."""
    return [int(scope.removeprefix(_BATCH)) for scope in scopes if scope.startswith(_BATCH)]


def buffers_among(scopes: Iterable[str]) -> set[str]:
    """Those of these scopes that are sources' frames."""
    return {scope for scope in scopes if scope.startswith((_BUFFER, _FLUSH))}


def buffer_of(source: str, *, flush: bool = False) -> str:
    """What a source's frames without a batch are launched by. `flush`: all of them, however few."""
    return f"{_FLUSH if flush else _BUFFER}{source}"

"""The deliveries that this process works on: after a lost connection, the broker redelivers their messages."""

from collections.abc import Iterator
from contextlib import contextmanager

_under_way: set[str] = set()


def under_way(delivery: str) -> bool:
    """Whether a thread of this process works on this delivery."""
    return delivery in _under_way


@contextmanager
def first(delivery: str) -> Iterator[bool]:
    """Yield True if no other thread of this process works on this delivery: it counts as under way during the block.
    Else yield False: the caller must not work on it. This is no lock: two threads at the same moment may both get
    True."""
    if delivery in _under_way:
        yield False
        return
    _under_way.add(delivery)  # not a lock: if two threads get here at once, the second claims nothing
    try:
        yield True
    finally:
        _under_way.discard(delivery)

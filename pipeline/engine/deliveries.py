"""Deliveries of messages that threads of this process are at: a broker that was away delivers them once more."""

from collections.abc import Iterator
from contextlib import contextmanager

_under_way: set[str] = set()


@contextmanager
def first(delivery: str) -> Iterator[bool]:
    """Whether nobody in this process is at this delivery; then it is the caller's until the context ends."""
    if delivery in _under_way:
        yield False
        return
    _under_way.add(delivery)  # one operation: of two threads one may come second, and its claim then finds nothing
    try:
        yield True
    finally:
        _under_way.discard(delivery)

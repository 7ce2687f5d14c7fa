"""The deliveries that this process is working on: a broker that was unreachable delivers their messages once more."""

from collections.abc import Iterator
from contextlib import contextmanager

_under_way: set[str] = set()


def under_way(delivery: str) -> bool:
    """Whether a thread of this process works on it."""
    return delivery in _under_way


@contextmanager
def first(delivery: str) -> Iterator[bool]:
    """Whether no other thread of this process works on this delivery; if so, it is the caller's in this context."""
    if delivery in _under_way:
        yield False
        return
    _under_way.add(delivery)  # not a lock: if two threads get here at once, the second one's claim finds nothing
    try:
        yield True
    finally:
        _under_way.discard(delivery)

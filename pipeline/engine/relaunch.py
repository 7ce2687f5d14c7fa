"""When a message that was sent is taken for lost, and sent again: messages are nudges, and may wait long in a queue."""

from datetime import timedelta

RELAUNCH_AFTER_S = 10
"""How long a message is waited for before it is taken for lost."""
MAX_RELAUNCH_S = 600


def wait_s(launches: int) -> int:
    """How long a message is waited for that was sent `launches` times before: ever longer."""
    return int(min(RELAUNCH_AFTER_S * 2 ** min(launches, 10), MAX_RELAUNCH_S))


def again(launches: int, idle: timedelta, *, waits: bool) -> tuple[bool, timedelta]:
    """(whether to send a message that is overdue again, when to look next). `waits`: its queue is not empty, so that it
    may stand there; after `idle` of ten minutes it is sent all the same, for a queue that is never empty."""
    if not waits:
        return True, timedelta(seconds=wait_s(launches))
    if idle > timedelta(seconds=MAX_RELAUNCH_S):
        return True, timedelta(seconds=MAX_RELAUNCH_S)
    return False, timedelta(seconds=RELAUNCH_AFTER_S)

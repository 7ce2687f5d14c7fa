"""When a message is taken for lost and sent again. Messages are nudges, and may wait long in a queue."""

from datetime import timedelta

RELAUNCH_AFTER_S = 10
"""How long to wait for a message before it is taken for lost."""
MAX_RELAUNCH_S = 600


def wait_s(launches: int) -> int:
    """How long to wait for a message that was sent `launches` times before: twice as long each time."""
    return int(min(RELAUNCH_AFTER_S * 2 ** min(launches, 10), MAX_RELAUNCH_S))


def again(launches: int, idle: timedelta, *, waits: bool) -> tuple[bool, timedelta]:
    """(whether to send an overdue message again, when to check next).

    `waits`: its queue is not empty, so it may be in there. After ten idle minutes it is sent all the same: a queue may
    never be empty.
    """
    if not waits:
        return True, timedelta(seconds=wait_s(launches))
    if idle > timedelta(seconds=MAX_RELAUNCH_S):
        return True, timedelta(seconds=MAX_RELAUNCH_S)
    return False, timedelta(seconds=RELAUNCH_AFTER_S)

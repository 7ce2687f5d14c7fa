"""Which work is next: new or recovering, 3 to 1, and neither waits while workers are free.

Rules: docs/sources/screenshots.md#tracks.

The design calls the two lanes; a lane is something else here.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from pipeline.flows.screenshots.states import Track


class Waiting(Protocol):
    """A row that waits for work: a batch, or a node to merge."""

    @property
    def id(self) -> Hashable: ...
    @property
    def attempts(self) -> int: ...
    @property
    def created_at(self) -> datetime: ...


Row = TypeVar("Row", bound=Waiting)


def track_of(attempts: int, created_at: datetime, now: datetime, recovery_age_s: float) -> Track:
    """Recovery for what failed before or is old; a row from the future (the clock was set back) is new."""
    if attempts > 0 or (now - created_at).total_seconds() >= recovery_age_s:
        return Track.RECOVERY
    return Track.REALTIME


def pick(
    rows: Iterable[Row], count: int, now: datetime, recovery_age_s: float, weights: Mapping[Track, int], turn: int = 0
) -> tuple[list[Row], int]:
    """(up to `count` rows in the order of their turns, the next turn). Each track keeps the rows' order.

    `weights`: turns of each track in a round while both have work, 3 to 1. An empty track's turns go to the other and
    use none up: nobody idles while there is work, and nobody is owed a turn.
    """
    waiting: dict[Track, list[Row]] = {Track.RECOVERY: [], Track.REALTIME: []}
    for row in reversed(list(rows)):
        waiting[track_of(row.attempts, row.created_at, now, recovery_age_s)].append(row)
    picked: list[Row] = []
    while len(picked) < count and any(waiting.values()):
        if all(waiting.values()):
            place = turn % sum(weights.values())
            track = Track.REALTIME if place < weights[Track.REALTIME] else Track.RECOVERY
            turn += 1
        else:
            track = next(track for track, left in waiting.items() if left)
        picked.append(waiting[track].pop())
    return picked, turn


def scanned(newest: Sequence[Row], oldest: Sequence[Row], limit: int) -> list[Row]:
    """Half newest and half oldest, each row once, at most `limit`; either half fills what the other lacks.

    `newest`: newest first; `oldest`: oldest first; read up to `limit` of each.
    """
    found: dict[Hashable, Row] = {}
    for place in range(max(len(newest), len(oldest))):
        for half in (newest, oldest):
            if place < len(half) and len(found) < limit:
                found.setdefault(half[place].id, half[place])
    return list(found.values())

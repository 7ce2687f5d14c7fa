"""Chooses the next work from two tracks, new and recovering, 3 to 1; neither track waits while workers are free.

Rules: docs/sources/screenshots.md#tracks.

The design calls the tracks lanes; in Penstock a lane is a task.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from pipeline.flows.screenshots.states import Track


class Candidate(Protocol):
    """A row that waits for its turn."""

    @property
    def id(self) -> Hashable: ...
    @property
    def attempts(self) -> int: ...
    @property
    def created_at(self) -> datetime: ...


Row = TypeVar("Row", bound=Candidate)


def track_of(attempts: int, created_at: datetime, now: datetime, recovery_age_s: float) -> Track:
    """Return the recovery track for rows of at least `recovery_age_s` or with attempts, else the realtime track. A row
    from the future (the clock went back) is new."""
    if attempts > 0 or (now - created_at).total_seconds() >= recovery_age_s:
        return Track.RECOVERY
    return Track.REALTIME


def pick(
    rows: Iterable[Row], count: int, now: datetime, recovery_age_s: float, weights: Mapping[Track, int], turn: int = 0
) -> tuple[list[Row], int]:
    """Return (up to `count` rows in the order of their turns, the next turn). Each track keeps the rows' order.

    `weights`: turns of each track in a round while both have work, such as 3 to 1. While one track is empty, the other
    takes all places and `turn` does not advance: no worker idles while work waits, and no track accumulates turns.
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
    """Take half of `limit` from the newest and half from the oldest, without repeats; if one half has too few, the
    other supplies more.

    `newest`: newest first; `oldest`: oldest first; up to `limit` rows each.
    """
    by_id: dict[Hashable, Row] = {}
    for place in range(max(len(newest), len(oldest))):
        for half in (newest, oldest):
            if place < len(half) and len(by_id) < limit:
                by_id.setdefault(half[place].id, half[place])
    return list(by_id.values())

"""Which work is next: new or recovering, 3 to 1, and neither waits while workers are free. Source 000, 2.4 and 5.1."""

from collections.abc import Hashable, Iterable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from pipeline.flows.screenshots.states import Lane
from pipeline.settings import ScreenshotSettings


class Waiting(Protocol):
    """A row that waits for work: a batch, or a node to merge."""

    @property
    def id(self) -> Hashable: ...
    @property
    def attempts(self) -> int: ...
    @property
    def created_at(self) -> datetime: ...


Row = TypeVar("Row", bound=Waiting)


def lane_of(attempts: int, created_at: datetime, now: datetime, recovery_age_s: float) -> Lane:
    """Recovery for what failed before or is old; a row from the future (the clock was set back) is new."""
    if attempts > 0 or (now - created_at).total_seconds() >= recovery_age_s:
        return Lane.RECOVERY
    return Lane.REALTIME


def lane_for_turn(turn: int, settings: ScreenshotSettings) -> Lane:
    """The lane whose turn number `turn` (from 0) it is while both have work: 3 of 4 are realtime's.

    Take the other one where this one is empty.
    """
    place = turn % (settings.realtime_weight + settings.recovery_weight)
    return Lane.REALTIME if place < settings.realtime_weight else Lane.RECOVERY


def pick(
    rows: Iterable[Row], count: int, now: datetime, settings: ScreenshotSettings, turn: int = 0
) -> tuple[list[Row], int]:
    """(up to `count` rows in the order of their turns, the turn to go on with). Each lane keeps the rows' order.

    An empty lane's turns are the other's, and use none up: nobody is idle while there is work, and nobody is owed.
    """
    lanes: dict[Lane, list[Row]] = {Lane.REALTIME: [], Lane.RECOVERY: []}
    for row in rows:
        lanes[lane_of(row.attempts, row.created_at, now, settings.recovery_age_s)].append(row)
    queues = {lane: iter(members) for lane, members in lanes.items()}
    left = {lane: len(members) for lane, members in lanes.items()}
    picked: list[Row] = []
    while len(picked) < count and any(left.values()):
        if all(left.values()):
            lane = lane_for_turn(turn, settings)
            turn += 1
        else:
            lane = next(lane for lane, number in left.items() if number)
        picked.append(next(queues[lane]))
        left[lane] -= 1
    return picked, turn


def scanned(newest: Sequence[Row], oldest: Sequence[Row], limit: int) -> list[Row]:
    """Half newest and half oldest, each row once, at most `limit`; what one half lacks, the other may fill.

    `newest`: newest first; `oldest`: oldest first; read up to `limit` of each.
    """
    found: dict[Hashable, Row] = {}
    for place in range(max(len(newest), len(oldest))):
        for half in (newest, oldest):
            if place < len(half) and len(found) < limit:
                found.setdefault(half[place].id, half[place])
    return list(found.values())

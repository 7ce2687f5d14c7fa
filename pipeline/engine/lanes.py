"""A lane: one place in a scope's share of the workers, moving through the scope unit by unit."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Unit = TypeVar("Unit")
Outcome = TypeVar("Outcome")

MAX_BATCH = 256
MIN_SLICE_S = 0.05
"""A lane works at least this long before it yields to others, so that changing over never costs more than working."""


@dataclass(frozen=True)
class Batch(Generic[Unit]):
    """Units that were claimed, and whether the scope has more of them to claim now."""

    units: Sequence[Unit]
    more: bool


class LaneWork(Protocol[Unit, Outcome]):
    """What a flow does in a lane. All rows of one lane belong to one scope."""

    def exchange(self, outcomes: Sequence[Outcome], want: int, unbegun: Sequence[Unit] = ()) -> Batch[Unit]:
        """In one transaction: commit `outcomes`, give back units that were never begun, claim up to `want` units."""

    def perform(self, unit: Unit) -> Outcome:
        """Do one unit. Never raises: an error is an outcome."""

    def others_wait(self) -> bool:
        """Someone else's message waits for this worker: the lane should yield soon."""


@dataclass(frozen=True)
class Hop:
    """How a hop ended. `more`: the lane should take its place at the tail of the queue again."""

    more: bool
    batch: int
    """Units to claim at once, by what the last ones cost: where the next hop starts."""


def run_lane(
    work: LaneWork[Unit, Outcome], *, quantum_s: float, batch: int = 1, clock: Callable[[], float] = time.monotonic
) -> Hop:
    """One hop of a lane: work through the scope for about `quantum_s` seconds, then say whether there is more.

    With a quantum of 0, one unit. Otherwise the number of units claimed at once doubles as long as they would take
    less than a tenth of the quantum, so that cheap ones share their transactions. No unit is begun after the
    quantum: what was claimed beside units that turned out slow is given back.
    """
    started = clock()
    claimed = work.exchange([], min(batch, MAX_BATCH) if quantum_s else 1)
    while claimed.units:
        begun = clock()
        outcomes = []
        for unit in claimed.units:
            outcomes.append(work.perform(unit))
            ended = clock()
            if ended - started >= quantum_s:
                break
        per_unit_s = (ended - begun) / len(outcomes)
        batch = min(batch * 2, max(1, _fitting(quantum_s / 10, per_unit_s)))
        left_s = quantum_s - (ended - started)
        if left_s <= 0 or (ended - started >= MIN_SLICE_S and work.others_wait()):
            return Hop(work.exchange(outcomes, 0, claimed.units[len(outcomes) :]).more, batch)
        claimed = work.exchange(outcomes, max(1, min(batch, _fitting(left_s, per_unit_s))))
    return Hop(more=False, batch=batch)


def _fitting(time_s: float, per_unit_s: float) -> int:
    """How many units at this cost fit the time, within the limit of a batch."""
    return int(min(MAX_BATCH, time_s / per_unit_s)) if per_unit_s else MAX_BATCH

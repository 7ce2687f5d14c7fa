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

    def exchange(self, outcomes: Sequence[Outcome], want: int) -> Batch[Unit]:
        """In one transaction: commit `outcomes`, claim up to `want` units."""

    def perform(self, unit: Unit) -> Outcome:
        """Do one unit. Never raises: an error is an outcome."""

    def others_wait(self) -> bool:
        """Someone else's message waits for this worker: the lane should yield soon."""


@dataclass(frozen=True)
class Hop:
    """How a hop ended. `more`: the lane should take its place at the tail of the queue again."""

    more: bool
    batch: int
    """Units that were last claimed at once: where the next hop starts."""


def run_lane(
    work: LaneWork[Unit, Outcome], *, quantum_s: float, batch: int = 1, clock: Callable[[], float] = time.monotonic
) -> Hop:
    """One hop of a lane: work through the scope for about `quantum_s` seconds, then say whether there is more.

    With a quantum of 0, one unit. Otherwise the number of units claimed at once grows as long as they are cheap,
    so that a transaction is shared by as many units as fit the quantum.
    """
    started = clock()
    claimed = work.exchange([], min(batch, MAX_BATCH) if quantum_s else 1)
    while claimed.units:
        begun = clock()
        outcomes = [work.perform(unit) for unit in claimed.units]
        ended = clock()
        batch = _next_batch(len(outcomes), ended - begun, quantum_s)
        left_s = quantum_s - (ended - started)
        if left_s <= 0 or (ended - started >= MIN_SLICE_S and work.others_wait()):
            return Hop(work.exchange(outcomes, 0).more, batch)
        per_unit_s = (ended - begun) / len(outcomes)
        fitting = int(left_s / per_unit_s) if per_unit_s else MAX_BATCH
        claimed = work.exchange(outcomes, max(1, min(batch, fitting)))
    return Hop(more=False, batch=batch)


def _next_batch(done: int, took_s: float, quantum_s: float) -> int:
    """Twice as many as were just done, unless they would take more than a tenth of the quantum."""
    slice_s = quantum_s / 10
    if took_s <= slice_s / 2:
        return min(done * 2, MAX_BATCH)
    return max(1, min(done, int(done * slice_s / took_s)))

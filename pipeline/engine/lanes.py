"""A lane: one of a scope's places, whose message works through the scope unit by unit."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Unit = TypeVar("Unit")
Result = TypeVar("Result")

MAX_BATCH = 256
MIN_SLICE_S = 0.05
"""A lane works at least this long before it yields, so that switching never costs more than the work."""


@dataclass(frozen=True)
class Batch(Generic[Unit]):
    """The claimed units, and whether the scope has more to claim now."""

    units: Sequence[Unit]
    more: bool


@dataclass(frozen=True)
class Hop:
    """The end of a hop. `more`: the lane should queue up again, at the tail."""

    more: bool
    batch: int
    """How many units the next hop should claim at once, by the cost of the last ones."""


def run_lane(
    settle_and_claim: Callable[[Sequence[Result], int, Sequence[Unit]], Batch[Unit]],
    perform: Callable[[Unit], Result],
    others_wait: Callable[[], bool],
    *,
    quantum_s: float,
    batch: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> Hop:
    """Run one hop of a lane: work through the scope for about `quantum_s` seconds; return whether it has more, and the
    `batch` with which the next hop should begin: the most units of its first claim.

    - `settle_and_claim(results, want, untried)`, one transaction: settle `results`, claim up to `want` units, and
      release the units left `untried`.
    - `perform(unit)` does one unit and never raises: an error is a result.
    - `others_wait()`: whether a message of another scope waits for this worker, so that the lane should yield.

    With a quantum of 0, a hop is one unit. Otherwise the batch doubles while its units together take less than a
    tenth of the quantum, so that cheap units share transactions. No unit starts after the quantum: the hop releases
    units that it claimed beside slow ones.
    """
    started = clock()
    claimed = settle_and_claim([], min(batch, MAX_BATCH) if quantum_s else 1, [])
    while claimed.units:
        began = clock()
        results = []
        for unit in claimed.units:
            results.append(perform(unit))
            ended = clock()
            if ended - started >= quantum_s:
                break
        per_unit_s = (ended - began) / len(results)
        batch = min(batch * 2, max(1, _fitting(quantum_s / 10, per_unit_s)))
        left_s = quantum_s - (ended - started)
        if left_s <= 0 or (ended - started >= MIN_SLICE_S and others_wait()):
            return Hop(settle_and_claim(results, 0, claimed.units[len(results) :]).more, batch)
        claimed = settle_and_claim(results, max(1, min(batch, _fitting(left_s, per_unit_s))), [])
    return Hop(more=False, batch=batch)


def _fitting(time_s: float, per_unit_s: float) -> int:
    """How many units at this cost fit into the time, at most a full batch."""
    return int(min(MAX_BATCH, time_s / per_unit_s)) if per_unit_s else MAX_BATCH

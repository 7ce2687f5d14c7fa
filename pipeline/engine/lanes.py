"""A lane: one place in a scope's share of the workers, which moves through the scope unit by unit."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Unit = TypeVar("Unit")
Result = TypeVar("Result")

MAX_BATCH = 256
MIN_SLICE_S = 0.05
"""A lane works at least this long before it yields, so that switching never costs more than working."""


@dataclass(frozen=True)
class Batch(Generic[Unit]):
    """Units that were claimed, and whether the scope has more to claim now."""

    units: Sequence[Unit]
    more: bool


@dataclass(frozen=True)
class Hop:
    """How a hop ended. `more`: the lane should queue up again, at the tail."""

    more: bool
    batch: int
    """Units to claim at once in the next hop, by what the last ones cost."""


def run_lane(
    settle_and_claim: Callable[[Sequence[Result], int, Sequence[Unit]], Batch[Unit]],
    perform: Callable[[Unit], Result],
    others_wait: Callable[[], bool],
    *,
    quantum_s: float,
    batch: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> Hop:
    """One hop of a lane: work through the scope for about `quantum_s` seconds, then say whether there is more.

    - `settle_and_claim(results, want, untried)`, one transaction: settle `results`, claim up to `want` units, and
      release the units left `untried`.
    - `perform(unit)` does one unit and never raises: an error is a result.
    - `others_wait()`: a message of another scope waits for this worker, so the lane should yield soon.

    With a quantum of 0, a hop is one unit. Otherwise the batch doubles while its units together take less than a
    tenth of the quantum, so that cheap units share transactions. No unit is begun after the quantum: units that were
    claimed beside slow ones are released.
    """
    started = clock()
    claimed = settle_and_claim([], min(batch, MAX_BATCH) if quantum_s else 1, [])
    while claimed.units:
        begun = clock()
        results = []
        for unit in claimed.units:
            results.append(perform(unit))
            ended = clock()
            if ended - started >= quantum_s:
                break
        per_unit_s = (ended - begun) / len(results)
        batch = min(batch * 2, max(1, _fitting(quantum_s / 10, per_unit_s)))
        left_s = quantum_s - (ended - started)
        if left_s <= 0 or (ended - started >= MIN_SLICE_S and others_wait()):
            return Hop(settle_and_claim(results, 0, claimed.units[len(results) :]).more, batch)
        claimed = settle_and_claim(results, max(1, min(batch, _fitting(left_s, per_unit_s))), [])
    return Hop(more=False, batch=batch)


def _fitting(time_s: float, per_unit_s: float) -> int:
    """How many units at this cost fit into the time, at most a full batch."""
    return int(min(MAX_BATCH, time_s / per_unit_s)) if per_unit_s else MAX_BATCH

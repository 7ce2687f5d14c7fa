"""The simulation can fail: if any safeguard is removed, some seed soon fails."""

import pytest

from tests.simulation.gateway.mutations import MUTATIONS as GATEWAY_MUTATIONS
from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS, seeds_until_found

MOST_SEEDS = 300
SOON = {
    "marks",
    "order",
    "attempts",
    "failover",
    "outage",
    "wrong key",
    "neighbours",
    "slots of the dead",
    "attempt of a result",
    "binding",
    "slots",
    "release",
    "reservations",
}
"""Mutations that a few seeds expose. `make mutations` tries all of them."""
DEAR = {"reservations", "outage"}
"""The slowest of these."""


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.rotating] if each.name in DEAR else [])
        for each in (*MUTATIONS, *GATEWAY_MUTATIONS)
        if each.name in SOON
    ],
)
def test_the_simulation_notices_a_removed_safeguard(mutation: Mutation) -> None:
    count, violation = seeds_until_found(mutation, most=MOST_SEEDS, soon=True)
    assert count, "nothing was noticed"
    assert violation.startswith("Violation"), violation

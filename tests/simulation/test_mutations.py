"""The simulation can fail: without any one safeguard of the kernel, some seed soon notices."""

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation, seeds_until_found

MOST_SEEDS = 300
SOON = {"marks", "order", "attempts", "places"}
"""Those that a few seeds notice. `make mutations` tries all of them."""


@pytest.mark.parametrize("mutation", [one for one in MUTATIONS if one.name in SOON], ids=lambda one: one.name)
def test_what_is_taken_away_is_noticed(mutation: Mutation) -> None:
    count, what = seeds_until_found(mutation, most=MOST_SEEDS, soon=True)
    assert count, "nothing was noticed"
    assert what.startswith("Violation"), what

"""The simulation can fail: without any one safeguard of the kernel, a seed that is known notices."""

import pytest

from tests.simulation.mutations import MUTATIONS, NEAR, Mutation, seeds_until_found


@pytest.mark.parametrize("mutation", [one for one in MUTATIONS if one.seed is not None], ids=lambda one: one.name)
def test_what_is_taken_away_is_noticed(mutation: Mutation) -> None:
    count, what = seeds_until_found(mutation, mutation.seed or 0, NEAR)
    assert count, f"no seed near {mutation.seed} notices: `make mutations` finds another, to be written down"
    assert what.startswith("Violation"), what

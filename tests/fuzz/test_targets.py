"""A short form of `make fuzz`: what once failed, and some hundreds of new inputs for each target."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutation import mutants
from tests.fuzz.target import CORPUS
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_are_read_or_refused(name):
    target = TARGETS[name]
    for seed in target.seeds:
        target(seed)

    @settings(
        max_examples=15 if target.slow else 60, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(mutants(target) | st.binary(max_size=60))
    def fuzz(data):
        target(data)

    fuzz()


@pytest.mark.parametrize("name", TARGETS)
def test_usual_inputs_are_valid_before_mutation(name):
    """Else all mutations would end at the first check."""
    target = TARGETS[name]
    refused = 0
    for data in target.usual:
        try:
            target.run(data)
        except target.raises:
            refused += 1
    assert refused < len(target.usual)


def test_every_kept_input_belongs_to_a_target():
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)

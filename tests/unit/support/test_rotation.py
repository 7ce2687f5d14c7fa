"""Each rotating test runs in one eighth, all run in `test-all`, and inputs that revealed defects always run."""

from dataclasses import dataclass

import pytest

from tests.support.rotation import PARTS, rotation

TESTS = [f"tests/faults/test_{number}.py::test_it[sqlite]" for number in range(200)]


def test_each_rotating_test_runs_in_one_eighth_and_with_all_but_not_by_default() -> None:
    eighths = [rotation(f"{part}/{PARTS}") for part in range(1, PARTS + 1)]
    assert all(sum(eighth.includes(test) for eighth in eighths) == 1 for test in TESTS)
    assert all(10 < sum(eighth.includes(test) for test in TESTS) < 50 for eighth in eighths)
    assert all(rotation("all").includes(test) for test in TESTS)
    assert not any(rotation("none").includes(test) for test in TESTS)
    assert 0 < sum(rotation("turn").includes(test) for test in TESTS) < 50


def test_a_test_that_is_named_runs() -> None:
    assert all(rotation("none", named=True).includes(test) for test in TESTS)


@dataclass
class Thing:
    name: str
    pinned: bool = False


def test_an_eighth_of_the_inputs_and_all_pinned_ones_are_due() -> None:
    things = [Thing(name, pinned=number < 2) for number, name in enumerate(TESTS)]
    due = rotation("none").of(things)
    assert due[:2] == things[:2]
    assert len(due) < 50
    assert rotation("all").of(things) == things


@pytest.mark.parametrize("wrong", ["0/8", "9/8", "3/7", "3", "some", "-1/8"])
def test_a_part_that_does_not_exist_is_refused(wrong: str) -> None:
    with pytest.raises(pytest.UsageError, match="3/8"):
        rotation(wrong)

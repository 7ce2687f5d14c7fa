"""A benchmark of several parts: each part has its own limit of time and names the figures that it missed."""

import json

import pytest

from benchmarks import console, documents, kernel, knowledge, limits, nodes, screenshots, start, suite
from benchmarks.suite import Aim, Part, Suite
from benchmarks.support import BenchmarkError

AIMS = {"early": Aim("measured first", 1), "late": Aim("measured last", 1, at_least=True), "dear": Aim("left out")}
PARTS = {
    "first": Part("nowhere.first", ("early",), 30, {}),
    "last": Part("nowhere.last", ("late",), 40, {}),
    "extra": Part("nowhere.extra", ("dear",), 50, {}, by_default=False),
}
TRIED = Suite("benchmarks.tried", "Tried.", AIMS, PARTS)


@pytest.fixture
def part_limits(monkeypatch):
    """Record the limit of each part. The first part uses up its own."""
    part_limits = {}

    def measured(_module, name, limit_s, **_):
        part_limits[name] = limit_s
        if name == "first":
            raise BenchmarkError(f"not done after {limit_s} s")
        return json.dumps({"late": 2, "dear": 3, "a fact": "so it was"})

    monkeypatch.setattr(suite, "measured", measured)
    return part_limits


def test_a_late_part_has_its_whole_limit_after_an_early_one_used_up_its_own(part_limits, capsys):
    assert TRIED.main([]) == 1
    output = capsys.readouterr().out
    assert part_limits == {"first": 30, "last": 40}
    assert json.loads(output.splitlines()[-1]) == {"early": None, "late": 2, "dear": 3}
    assert "first: NOT MEASURED" in output
    assert "extra: left out; --extra measures it too" in output


def test_a_named_limit_applies_to_each_part(part_limits):
    TRIED.main(["--limit-s", "5", "--extra"])
    assert part_limits == {"first": 5, "last": 5, "extra": 5}


def test_a_figure_without_an_aim_has_no_judgement():
    assert [Aim("none").judgement(3), Aim("most", 2).judgement(3), Aim("least", 2, at_least=True).judgement(3)] == [
        "",
        "NOT MET",
        "met",
    ]


@pytest.mark.parametrize(
    "module",
    [console, documents, kernel, knowledge, limits, nodes, screenshots, start],
    ids=lambda module: module.__name__,
)
def test_each_aim_is_measured_by_one_part(module):
    measured = [key for part in module.PARTS.values() for key in part.keys]
    assert sorted(measured) == sorted(module.AIMS)

"""The tests that `make test` leaves out, and when they run.

Two kinds of tests take turns, because shorter tests prove most of the same: tests marked `rotating`, and
tests on PostgreSQL that run on SQLite anyway. Tests of `ONE_DATABASE` run on SQLite only: the queries of their
callees have tests of their own. `--rotating` selects those that run:

    none    the default
    3/8     the third eighth, by a hash of the test's id
    turn    the eighth whose turn it is, by the commit: `.ci/run`
    all     `make test-all`

Collections of inputs take turns, too: a test of a collection asks `Rotation.of` for the due inputs. Without
`all`, these are an eighth, chosen by the commit unless `3/8` names it. A test named by its id (`FILE::NAME`) runs
in any case.
"""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

PARTS = 8
ONE_DATABASE = tuple(
    f"tests/integration/{name}/" for name in ("deploy", "interfaces", "nodes", "operations", "standalone", "tasks")
)
"""Folders whose tests run on SQLite, unless they are marked `both_databases`."""


class Named(Protocol):
    """An input of a collection."""

    @property
    def name(self) -> str: ...

    @property
    def pinned(self) -> bool: ...


Input = TypeVar("Input", bound=Named)
_ROTATION = pytest.StashKey["Rotation"]()


@dataclass(frozen=True)
class Rotation:
    """The selection of this session."""

    part: int
    """The eighth of inputs, from 1; of tests, too, if `tests` is "part"."""
    tests: str
    """Of the rotating tests: "none", "part" or "all"."""
    by: str
    """The source of the choice of the part."""

    def includes(self, test: str) -> bool:
        """Return whether a rotating test runs."""
        return self.tests == "all" or (self.tests == "part" and self._is_due(test))

    def of(self, inputs: Iterable[Input]) -> list[Input]:
        """Return the due inputs, and the pinned ones, which have revealed defects before."""
        return [
            candidate for candidate in inputs if self.tests == "all" or candidate.pinned or self._is_due(candidate.name)
        ]

    def _is_due(self, name: str) -> bool:
        return sha256(name.encode()).digest()[0] % PARTS + 1 == self.part

    def described(self) -> str:
        if self.tests == "all":
            return "rotation: everything runs"
        left_out = "no rotating tests" if self.tests == "none" else f"part {self.part}/{PARTS} of the rotating tests"
        return (
            f"rotation: {left_out}, and part {self.part}/{PARTS} of collected inputs ({self.by}); "
            "`--rotating all` or `make test-all` runs everything"
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rotating",
        default="none",
        metavar="none|turn|K/8|all",
        help="the rotating tests to run: see tests/support/rotation.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROTATION] = rotation(
        config.getoption("rotating"), named=any("::" in argument for argument in config.args)
    )


def pytest_report_header(config: pytest.Config) -> str:
    return config.stash[_ROTATION].described()


def rotation(wanted: str, *, named: bool = False) -> Rotation:
    """Return the selection for a value of `--rotating`."""
    part, by = _turn()
    if wanted in {"none", "turn", "all"}:
        tests = "all" if named else "part" if wanted == "turn" else wanted
        return Rotation(part, tests, by)
    number, _, of = wanted.partition("/")
    if not number.isdecimal() or not 1 <= int(number) <= PARTS or of != str(PARTS):
        raise pytest.UsageError(
            f"--rotating takes none, turn, all, or a part, as 3/{PARTS}; {wanted!r} is none of them"
        )
    return Rotation(int(number), "all" if named else "part", "--rotating")


@cache
def _turn() -> tuple[int, str]:
    """Return the part in turn and its source: the commit, or the day without a commit."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        today = datetime.now(UTC).date()
        return today.toordinal() % PARTS + 1, f"by the day, {today}"
    commit = done.stdout.strip()
    return int(commit, 16) % PARTS + 1, f"by commit {commit}"


@pytest.fixture(scope="session", name="rotation")
def _rotation(pytestconfig: pytest.Config) -> Rotation:
    """The session's selection of inputs."""
    return pytestconfig.stash[_ROTATION]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Return the databases that a test runs on."""
    if "database_url" not in metafunc.fixturenames or _names_its_database(metafunc):
        return
    kinds: list[object] = ["sqlite"]
    if metafunc.definition.get_closest_marker("both_databases"):
        kinds.append("postgresql")
    elif metafunc.config.stash[_ROTATION].tests != "none" and not metafunc.definition.nodeid.startswith(ONE_DATABASE):
        kinds.append(pytest.param("postgresql", marks=pytest.mark.rotating))
    metafunc.parametrize("database_url", kinds, indirect=True)


def _names_its_database(metafunc: pytest.Metafunc) -> bool:
    """Return whether a mark parametrises `database_url`, or a nearer conftest than `tests/conftest.py` defines it."""
    marked = any("database_url" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    return marked or metafunc._arg2fixturedefs["database_url"][-1].func.__module__ != "tests.conftest"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.stash[_ROTATION]
    out = [item for item in items if item.get_closest_marker("rotating") and not chosen.includes(item.nodeid)]
    if out:
        config.hook.pytest_deselected(items=out)
        left_out = set(out)
        items[:] = [item for item in items if item not in left_out]

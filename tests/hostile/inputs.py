"""A hostile input: its name, a few lines that write it, and the outcome that Penstock must report."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.cli import Result
from tests.support.rotation import Rotation

COMMANDING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal or reverse its text."""

ANY_END = r"COMPLETED|FAILED|REFUSED|PARTIAL_FAILED"
"""The outcome of an input that may be converted or refused."""


@dataclass(frozen=True)
class Hostile:
    """A hostile file. `make` writes it to a path.

    `outcome`: a pattern for `STATE: error` of its row. Each input ends as one row, with any outcome.
    """

    name: str
    make: Callable[[Path], object]
    outcome: str = ANY_END
    pinned: bool = False
    """Part of every run: it once found a fault, or represents its kind."""

    def judge(self, state: str, error: str | None) -> str:
        """Return the fault of this end; empty without a fault."""
        ended = f"{state}: {error or ''}"
        if re.search(self.outcome, ended, re.DOTALL):
            return ""
        return f"{self.name} ended as {ended[:300]!r}, which does not match {self.outcome!r}"


def written(data: bytes | Callable[[], bytes]) -> Callable[[Path], object]:
    """Return a function that writes a file with these bytes.

    Bytes that take long to make come from a function, since every worker of pytest-xdist imports these modules.
    """
    return lambda path: path.write_bytes(data() if callable(data) else data)


def write_inputs(inputs: Iterable[Hostile], folder: Path, rotation: Rotation) -> list[Hostile]:
    """Write this run's inputs to the folder and return them."""
    chosen = rotation.of(inputs)
    for hostile in chosen:
        hostile.make(folder / hostile.name)
    return chosen


def assert_calm(result: Result, *codes: int) -> None:
    """Check that a command ended with one of these codes and plain words, without commands for a terminal."""
    assert not (problem := fault_of(result, *codes)), problem


def fault_of(result: Result, *codes: int) -> str:
    """Return the fault of a command's end; empty without a fault."""
    output = result.out + result.err
    if "Traceback" in output:
        return f"a traceback: …{output[-1500:]}"
    if result.code not in codes:
        return f"exit code {result.code}: …{output[-1500:]}"
    command = COMMANDING.search(output)
    return (
        f"commands for a terminal: {output[max(0, command.start() - 100) : command.end() + 100]!a}" if command else ""
    )


def assert_outcomes(inputs: Sequence[Hostile], ends: dict[str, tuple[str, str | None]]) -> None:
    """Check that every input ended with an allowed outcome."""
    wrong = [
        hostile.judge(*ends[hostile.name]) if hostile.name in ends else f"{hostile.name} did not end"
        for hostile in inputs
    ]
    assert not list(filter(None, wrong)), "\n".join(filter(None, wrong))

"""What a hostile input is: a name, a few lines that make it, and what must be said about it."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.cli import Result
from tests.support.rotation import Rotation

COMMANDING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What commands a terminal or turns its text round."""

ANY_END = r"COMPLETED|FAILED|REFUSED|PARTIAL_FAILED"
"""Of what may be converted or refused, as long as it ends."""


@dataclass(frozen=True)
class Hostile:
    """A file that means harm. `make` writes it to the path that it is given.

    `said`: a pattern that its state and its error match, `STATE: error`. It ends as one row, whatever becomes of it.
    """

    name: str
    make: Callable[[Path], object]
    said: str = ANY_END
    pinned: bool = False
    """Tried in every run: it has found a fault, or stands for its kind."""

    def judge(self, state: str, error: str | None) -> str:
        """What is wrong with this end; empty if nothing is."""
        ended = f"{state}: {error or ''}"
        if re.search(self.said, ended, re.DOTALL):
            return ""
        return f"{self.name} ended as {ended[:300]!r}, which does not match {self.said!r}"


def written(data: bytes | Callable[[], bytes]) -> Callable[[Path], object]:
    """A maker of a file with these bytes.

    What takes long to make is a function: every worker of pytest-xdist imports these modules, and one runs the tests.
    """
    return lambda path: path.write_bytes(data() if callable(data) else data)


def made(inputs: Iterable[Hostile], folder: Path, rotation: Rotation) -> list[Hostile]:
    """Those of the inputs that are due, written to the folder."""
    found = rotation.of(inputs)
    for one in found:
        one.make(folder / one.name)
    return found


def assert_calm(result: Result, *codes: int) -> None:
    """It ended by itself with one of these codes, in words, without a command for a terminal."""
    assert not (problem := uneasy(result, *codes)), problem


def uneasy(result: Result, *codes: int) -> str:
    """What is not calm about the end of a command; empty if all is."""
    said = result.out + result.err
    if "Traceback" in said:
        return f"a traceback: …{said[-1500:]}"
    if result.code not in codes:
        return f"exit code {result.code}: …{said[-1500:]}"
    found = COMMANDING.search(said)
    return f"commands for a terminal: {said[max(0, found.start() - 100) : found.end() + 100]!a}" if found else ""


def judged(inputs: Sequence[Hostile], ends: dict[str, tuple[str, str | None]]) -> None:
    """Every input ended, and as it must."""
    wrong = [one.judge(*ends[one.name]) if one.name in ends else f"{one.name} did not end" for one in inputs]
    assert not list(filter(None, wrong)), "\n".join(filter(None, wrong))

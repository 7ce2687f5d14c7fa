"""Where two texts differ, word by word, in bounded time: lines first, then the words of those that were replaced."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
MAX_CHARACTERS = 200_000
"""Of each text; what comes after is not compared."""
MAX_LINES = 4_000
MAX_STEPS = 9_000_000
"""Words of one side times words of the other, of lines that replace each other; beyond, they differ as a whole."""
PATIENCE_S = 0.5
"""After that, lines are compared no further."""
_FEW = 200
"""Fewer pieces than this are compared exactly; of more, difflib leaves out the most frequent ones."""


@dataclass(frozen=True)
class Piece:
    """Part of a text; `changed`: the other one does not have it."""

    text: str
    changed: bool


@dataclass(frozen=True)
class Difference:
    """Both texts in pieces that follow one another."""

    old: list[Piece]
    new: list[Piece]
    cut: bool
    """The texts are too long to be compared as a whole."""

    @property
    def same(self) -> bool:
        """Nothing differs."""
        return not any(piece.changed for piece in (*self.old, *self.new))


def difference(old: str, new: str, clock: Callable[[], float] = time.monotonic) -> Difference:
    """Where the texts differ."""
    cut = max(len(old), len(new)) > MAX_CHARACTERS
    a, b = (text[:MAX_CHARACTERS].splitlines(keepends=True) for text in (old, new))
    cut = cut or max(len(a), len(b)) > MAX_LINES
    pieces: tuple[list[Piece], list[Piece]] = [], []
    until = clock() + PATIENCE_S
    for kept, some, others in _compared(a[:MAX_LINES], b[:MAX_LINES]):
        if kept:
            _add(pieces, "".join(some), "".join(others), changed=False)
            continue
        before, after = (_TOKEN.findall("".join(part)) for part in (some, others))
        if before and after and len(before) * len(after) <= MAX_STEPS and clock() < until:
            for same, one, other in _compared(before, after):
                _add(pieces, "".join(one), "".join(other), changed=not same)
        else:
            _add(pieces, "".join(before), "".join(after), changed=True)
    return Difference(*pieces, cut)


def _compared(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[bool, Sequence[str], Sequence[str]]]:
    """(whether they are the same, some of the one, some of the other), in order. Blanks alone show no likeness."""
    found = SequenceMatcher(str.isspace, a, b, autojunk=max(len(a), len(b)) > _FEW)
    for what, first, last, begin, end in found.get_opcodes():
        yield what == "equal", a[first:last], b[begin:end]


def _add(pieces: tuple[list[Piece], list[Piece]], old: str, new: str, *, changed: bool) -> None:
    for side, text in zip(pieces, (old, new), strict=True):
        if not text:
            continue
        if side and side[-1].changed is changed:
            side[-1] = Piece(side[-1].text + text, changed)
        else:
            side.append(Piece(text, changed))

"""Compares two texts in bounded time: line by line, then word by word within replaced lines."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
MAX_CHARACTERS = 200_000
"""Characters of each text that are compared; the rest is ignored."""
MAX_LINES = 4_000
MAX_STEPS = 9_000_000
"""The most words of the old lines times words of the new lines that are compared word by word."""
PATIENCE_S = 0.5
"""After this time, replaced lines are not compared word by word."""
_FEW = 200
"""Up to this many pieces are compared exactly; above, difflib ignores the most frequent ones."""


@dataclass(frozen=True)
class Piece:
    """A part of a text; `changed` if the other text lacks it."""

    text: str
    changed: bool


@dataclass(frozen=True)
class Difference:
    """Both texts as consecutive pieces."""

    old: list[Piece]
    new: list[Piece]
    cut: bool
    """The texts exceed the limits, so their ends are missing."""

    @property
    def same(self) -> bool:
        """Whether the compared parts are equal; ends beyond the limits do not count."""
        return not any(piece.changed for piece in (*self.old, *self.new))


def difference(old: str, new: str, clock: Callable[[], float] = time.monotonic) -> Difference:
    """Return both texts in pieces that mark the differences: by lines, and by words within replaced lines.

    After `PATIENCE_S` by `clock`, in seconds, replaced lines are marked as a whole.
    """
    cut = max(len(old), len(new)) > MAX_CHARACTERS
    a, b = (text[:MAX_CHARACTERS].splitlines(keepends=True) for text in (old, new))
    cut = cut or max(len(a), len(b)) > MAX_LINES
    pieces: tuple[list[Piece], list[Piece]] = [], []
    until = clock() + PATIENCE_S
    for is_equal, old_lines, new_lines in _compared(a[:MAX_LINES], b[:MAX_LINES]):
        if is_equal:
            _add(pieces, "".join(old_lines), "".join(new_lines), changed=False)
            continue
        before, after = (_TOKEN.findall("".join(part)) for part in (old_lines, new_lines))
        if before and after and len(before) * len(after) <= MAX_STEPS and clock() < until:
            for same, old_words, new_words in _compared(before, after):
                _add(pieces, "".join(old_words), "".join(new_words), changed=not same)
        else:
            _add(pieces, "".join(before), "".join(after), changed=True)
    return Difference(*pieces, cut)


def _compared(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[bool, Sequence[str], Sequence[str]]]:
    """Yield (whether they are equal, a part of `a`, a part of `b`), in order; white space does not align the texts."""
    matcher = SequenceMatcher(str.isspace, a, b, autojunk=max(len(a), len(b)) > _FEW)
    for operation, first, last, begin, end in matcher.get_opcodes():
        yield operation == "equal", a[first:last], b[begin:end]


def _add(pieces: tuple[list[Piece], list[Piece]], old: str, new: str, *, changed: bool) -> None:
    for side, text in zip(pieces, (old, new), strict=True):
        if not text:
            continue
        if side and side[-1].changed is changed:
            side[-1] = Piece(side[-1].text + text, changed)
        else:
            side.append(Piece(text, changed))

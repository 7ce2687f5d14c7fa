"""Places where a gutter may be: the x that most gaps between pieces side by side share."""

from collections.abc import Iterator, Sequence
from math import inf
from statistics import median
from typing import Protocol

MIN_WIDTH = 0.6  # text sizes
_MIN_SIZE = 0.1  # of text, in any unit
_MIN_SLICES = 4
_MAX_PLACES = 8
_MAX_SLICES = 40  # per piece: a higher piece is not text
_MAX_BESIDE = 60  # pieces side by side: more are not columns


class Placed(Protocol):
    """Anything with a place on the page: a line, a table or a frame."""

    @property
    def left(self) -> float: ...
    @property
    def top(self) -> float: ...
    @property
    def right(self) -> float: ...
    @property
    def bottom(self) -> float: ...
    @property
    def size(self) -> float: ...
    @property
    def characters(self) -> int: ...


Gap = tuple[float, float]


def places(pieces: Sequence[Placed]) -> list[float]:
    """Return the x of at most eight possible gutters between lines, tables or frames side by side, those shared by most
    gaps first; empty without any."""
    # Damaged files have text of any size.
    size = median([piece.size for piece in pieces if _MIN_SIZE <= piece.size < inf] or [0.0])
    if not size:
        return []
    gaps = list(_gaps(pieces, size))
    gutters: list[float] = []
    while len(gaps) >= _MIN_SLICES and len(gutters) < _MAX_PLACES:
        low, high, count = _deepest(gaps)
        if count < _MIN_SLICES:
            break
        x = (low + high) / 2
        gutters.append(x)
        gaps = [gap for gap in gaps if not gap[0] <= x <= gap[1]]
    return gutters


def _gaps(pieces: Sequence[Placed], size: float) -> Iterator[Gap]:
    """Yield (left, right) of each gap between neighbours in each slice of the page, about as high as a line of text."""
    slices: dict[int, list[Gap]] = {}
    for piece in pieces:
        first = int(piece.top / size + 0.5)
        last = max(first, int(piece.bottom / size - 0.5))
        for number in range(first, min(last, first + _MAX_SLICES) + 1):
            slices.setdefault(number, []).append((piece.left, piece.right))
    for beside in slices.values():
        if not 2 <= len(beside) <= _MAX_BESIDE:
            continue
        beside.sort()
        end = beside[0][1]
        for left, right in beside[1:]:
            if left - end >= MIN_WIDTH * size:
                yield end, left
            end = max(end, right)


def _deepest(gaps: Sequence[Gap]) -> tuple[float, float, int]:
    """Return (low, high, count) of the stretch that most gaps share."""
    # A gap that starts where another ends does not overlap it.
    events = sorted([(low, 1) for low, _ in gaps] + [(high, 0) for _, high in gaps])
    depth = most = 0
    best = (0.0, 0.0)
    for index, (at, opens) in enumerate(events):
        depth += 1 if opens else -1
        if opens and depth > most:
            most, best = depth, (at, events[index + 1][0])
    return (*best, most)

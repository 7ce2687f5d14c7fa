"""Reading order: columns, and the lines that run across them."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from statistics import median
from typing import Protocol, TypeVar

_MIN_GUTTER = 0.6  # text sizes
_MIN_COLUMN_LINES = 4
_MIN_BAND_LINES = 4  # Fewer lines on a side between two wide lines are not columns.
_MIN_COLUMN_SHARE = 0.2  # of the region's width
_MIN_PROSE_CHARS = 15  # A side with fewer characters per line, on average, is a table's column and not text.
_MAX_ALIGNED = 0.6  # share of lines on one level, from which on two sides are the cells of a table
_MAX_CROSSING = 0.35  # share of lines that may run across a gutter (titles, wide figures' captions)
_REACH = 0.12  # share of its width by which a line may reach into a gutter
_BINS = 128
_MAX_DEPTH = 4


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


P = TypeVar("P", bound=Placed)


def reading_order(lines: Sequence[P], *, leftwards: bool = False, depth: int = 0) -> list[list[P]]:
    """Lists of lines in the order they are read: column after column between the lines that span all columns.

    `leftwards`: the right column is read first, as in Arabic.
    """
    gutter = find_gutter(lines) if depth < _MAX_DEPTH else None
    if gutter is None:
        return [list(lines)] if lines else []
    blocks: list[list[P]] = []
    spanning: list[P] = []
    for left, right, closing in _bands(lines, gutter):
        if _reads_across(left, right):
            # Pieces of a heading or a table between two wide lines are read across.
            spanning += left + right
        elif left or right:
            blocks += [spanning] if spanning else []
            for side in (right, left) if leftwards else (left, right):
                blocks += reading_order(side, leftwards=leftwards, depth=depth + 1)
            spanning = []
        spanning += closing
    return [*blocks, spanning] if spanning else blocks


def _bands(lines: Sequence[P], gutter: float) -> Iterator[tuple[list[P], list[P], list[P]]]:
    """From top to bottom: lines left of the gutter, lines right of it, and the line across it that ends the band."""
    left: list[P] = []
    right: list[P] = []
    for line in sorted(lines, key=_vertical_middle):
        # A line that only reaches into the gutter belongs to its own side.
        if min(gutter - line.left, line.right - gutter) > max(0.0, _REACH * (line.right - line.left)):
            yield left, right, [line]
            left, right = [], []
        else:
            (left if line.left + line.right <= 2 * gutter else right).append(line)
    yield left, right, []


def _reads_across(left: Sequence[P], right: Sequence[P]) -> bool:
    if max(len(left), len(right)) < _MIN_BAND_LINES:
        return True
    if min(len(left), len(right)) < 2 or _aligned_share(left, right) < 0.8:
        return False
    return min(_mean_characters(left), _mean_characters(right)) < _MIN_PROSE_CHARS


def find_gutter(lines: Sequence[P]) -> float | None:
    """The x between two columns of running text; None if there are none (one column, or a table's cells)."""
    if len(lines) < 2 * _MIN_COLUMN_LINES:
        return None
    start, end = min(line.left for line in lines), max(line.right for line in lines)
    size = median(line.size for line in lines)
    x = _middle_of_emptiest_run(lines, start, end, _MIN_GUTTER * size)
    if x is None:
        return None
    left = [line for line in lines if line.right <= x]
    right = [line for line in lines if line.left >= x]
    if min(len(left), len(right)) < _MIN_COLUMN_LINES:
        return None
    prose = _is_prose(left, end - start) and _is_prose(right, end - start)
    return x if prose or _aligned_share(left, right) < _MAX_ALIGNED else None


def _middle_of_emptiest_run(lines: Sequence[P], start: float, end: float, least_width: float) -> float | None:
    """The middle of the widest stretch of x, away from the margins, that the fewest lines cover."""
    step = (end - start) / _BINS
    if step <= 0:
        return None
    cover = _cover(lines, start, step)
    margin = int(_BINS * _MIN_COLUMN_SHARE)
    middle = cover[margin : _BINS - margin]
    for most in sorted(level for level in set(middle) if level <= _MAX_CROSSING * len(lines)):
        run = max(_runs(middle, most), key=lambda run: run[1] - run[0])
        if (run[1] - run[0]) * step >= least_width:
            return start + (margin + (run[0] + run[1]) / 2) * step
    return None


def _cover(lines: Sequence[P], start: float, step: float) -> list[int]:
    """How many lines cover each step of the way across."""
    changes = [0] * (_BINS + 1)
    for line in lines:
        first, last = sorted((line.left, line.right))
        changes[max(0, min(_BINS, int((first - start) / step)))] += 1
        changes[max(0, min(_BINS, int((last - start) / step) + 1))] -= 1
    return list(accumulate(changes[:_BINS]))


def _runs(cover: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """(first, end) of stretches that at most `most` lines cover."""
    first = None
    for index, level in enumerate((*cover, most + 1)):
        if level > most and first is not None:
            yield first, index
            first = None
        elif level <= most and first is None:
            first = index


def _is_prose(lines: Sequence[P], region_width: float) -> bool:
    width = max(line.right for line in lines) - min(line.left for line in lines)
    return width >= _MIN_COLUMN_SHARE * region_width and _mean_characters(lines) >= _MIN_PROSE_CHARS


def _mean_characters(lines: Sequence[P]) -> float:
    return sum(line.characters for line in lines) / len(lines)


def _aligned_share(left: Sequence[P], right: Sequence[P]) -> float:
    """Share of the lines on the shorter side that are level with a line of the other: nearly all in a table."""
    fewer, more = sorted((left, right), key=len)
    middles = sorted(_vertical_middle(line) for line in more)
    level = 0
    for line in fewer:
        tolerance = 0.25 * line.size
        index = bisect_left(middles, _vertical_middle(line) - tolerance)
        level += index < len(middles) and middles[index] <= _vertical_middle(line) + tolerance
    return level / len(fewer)


def _vertical_middle(line: Placed) -> float:
    return (line.top + line.bottom) / 2

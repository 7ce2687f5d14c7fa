"""Reading order: columns, and what runs across them."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import Protocol, TypeVar

_MIN_GUTTER = 0.6  # text sizes
_MIN_COLUMN_LINES = 4
_MIN_BAND_LINES = 4  # lines on a side, below which what stands between two wide lines is no columns
_MIN_COLUMN_SHARE = 0.2  # of the region's width
_MIN_PROSE_CHARS = 15  # mean characters of a line, below which a side is a table's column and not text
_MAX_ALIGNED = 0.6  # share of level lines, from which two sides are the cells of a table
_MAX_CROSSING = 0.35  # share of lines that may run across a gutter (titles, wide figures' captions)
_REACH = 0.12  # of its width by which a line may reach into a gutter
_BINS = 128
_MAX_DEPTH = 4


class Placed(Protocol):
    """What has a place on the page: a line, or a table that was found already."""

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
    """Blocks of lines in the order they are read: column after column between the lines that span all columns.

    `leftwards`: the column on the right is read first, as in Arabic.
    """
    gutter = find_gutter(lines) if depth < _MAX_DEPTH else None
    if gutter is None:
        return [list(lines)] if lines else []
    blocks: list[list[P]] = []
    spanning: list[P] = []
    for left, right, closing in _bands(lines, gutter):
        if _reads_across(left, right):
            # A heading's or table's pieces between two wide lines: they are read across.
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
        if _crosses(line, gutter):
            yield left, right, [line]
            left, right = [], []
        else:
            (left if line.left + line.right <= 2 * gutter else right).append(line)
    yield left, right, []


def _crosses(line: Placed, gutter: float) -> bool:
    """Whether the line runs over the gutter; one that only reaches into it belongs to its own side."""
    into = min(gutter - line.left, line.right - gutter)
    return into > 0 and into > _REACH * (line.right - line.left)


def _reads_across(left: Sequence[P], right: Sequence[P]) -> bool:
    if max(len(left), len(right)) < _MIN_BAND_LINES:
        return True
    if min(len(left), len(right)) < 2 or _aligned_share(left, right) < 0.8:
        return False
    return min(_mean_characters(left), _mean_characters(right)) < _MIN_PROSE_CHARS


def find_gutter(lines: Sequence[P]) -> float | None:
    """The x between two columns of running text; None where there are none (one column, or a table's cells)."""
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
    """The middle of the widest stretch of x, away from the margins, that as few lines as possible cover."""
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
    """How many lines stand over each step of the way across."""
    changes = [0] * (_BINS + 1)
    for line in lines:
        first, last = sorted((line.left, line.right))
        changes[max(0, min(_BINS, int((first - start) / step)))] += 1
        changes[max(0, min(_BINS, int((last - start) / step) + 1))] -= 1
    return list(accumulate(changes[:_BINS]))


def _runs(cover: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """(first, end) of stretches where at most `most` lines stand."""
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
    """Share of the side with fewer lines that stand level with a line of the other: nearly all in a table's rows."""
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


def pitch(lines: Sequence[Placed]) -> float:
    """The typical distance from one line to the next."""
    ends = sorted(line.bottom for line in lines)
    steps = [b - a for a, b in pairwise(ends) if b > a]
    return median(steps) if steps else 0.0

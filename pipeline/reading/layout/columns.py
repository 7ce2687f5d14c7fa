"""Reading order: columns, and the lines that run across them."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Generic, NamedTuple, TypeVar

from pipeline.reading.layout import gutters
from pipeline.reading.layout.gutters import Placed
from pipeline.reading.layout.model import Line, Region, Rule
from pipeline.reading.layout.text import is_label, is_number

_MIN_COLUMN_LINES = 4
_MIN_TEXT_LINES = 8  # on each side: so many table rows rarely all fill their cells
_MIN_BAND_LINES = 4  # Fewer lines on a side between two wide lines are not columns.
_MIN_COLUMN_SHARE = 0.2  # of the region's width
_MIN_PROSE_CHARS = 15  # A side with fewer characters per line, on average, is a table's column and not text.
_MAX_ALIGNED = 0.6  # share of level lines that makes two sides the cells of a table
_MIN_PAIRED = 0.8  # share of level lines from which on the sides may be labels and values
_MIN_LABELLED = 0.5  # share of the lines on the right that have a label on their left
_LONG = 0.75  # of the width of a side
_MIN_LONG = 0.6  # share of the lines of running text that are long
_MAX_BROKEN = 0.2  # share of a side's lines that are beside another line of that side
_MAX_CROSSING = 0.35  # share of lines across a gutter (titles, captions); with more, each band has to show its columns
_REACH = 0.12  # share of its width by which a line may reach into a gutter
_MIN_FULL = 0.5  # share of a text's lines that fill its width
_FULL = 0.9  # of its width
_LEVEL = 0.25  # text sizes between the middles of lines side by side
_MAX_PITCH = 1.7  # text sizes from one line of solid text to the next
_MIN_TABLE_ROWS, _MIN_CELLS = 3, 3
_MAX_TITLES, _MAX_HEAD = 2, 3  # rows without numbers, between and above those with numbers
_MAX_DEPTH = 12
_TEXT_KINDS = frozenset({"text", "reference"})
_MIN_SEEN = 0.7  # share of a column's lines inside the model's text regions
_SLACK = 1.0  # text sizes by which the model's boxes may be too wide


P = TypeVar("P", bound=Placed)


class Band(NamedTuple, Generic[P]):
    """The lines left and right of a gutter, and the line across the gutter that closes the band."""

    left: list[P]
    right: list[P]
    closing: list[P]


def reading_order(lines: Sequence[P], regions: Sequence[Region] = (), rules: Sequence[Rule] = ()) -> list[list[P]]:
    """Return groups of lines in reading order, each line once: column after column, between the lines that span all
    columns. Within a group, lines keep any order.

    `regions`: a layout model's regions, which decide where the lines do not; `rules`: those across all columns end
    them.
    """
    texts = [region for region in regions if region.kind in _TEXT_KINDS]
    return _ordered(lines, lambda band, gutter: _are_seen(band, gutter, texts), rules, 0)


def is_unsure(lines: Sequence[Placed], rules: Sequence[Rule] = ()) -> bool:
    """Whether the order depends on what a layout model sees beside the gutters."""
    without = _ordered(lines, lambda *_: False, rules, 0)
    seen = _ordered(lines, lambda band, _: _are_two(band), rules, 0)
    return [list(map(id, part)) for part in without] != [list(map(id, part)) for part in seen]


def _ordered(
    lines: Sequence[P], seen: Callable[[Band[P], float], bool], rules: Sequence[Rule], depth: int
) -> list[list[P]]:
    """Return the groups of `reading_order`. `seen`: whether a layout model sees text on both sides of a gutter;
    `depth`: how often columns have been split."""
    bands = _bands(lines, seen, rules) if depth < _MAX_DEPTH else []
    if not bands:
        return [list(lines)] if lines else []
    blocks: list[list[P]] = []
    spanning: list[P] = []
    for band, columns in bands:
        if not columns:
            # Pieces of a heading or a table between two wide lines stay in one row.
            spanning += band.left + band.right
        elif band.left or band.right:
            blocks += _ordered(spanning, seen, rules, depth + 1)
            for side in (band.left, band.right):
                blocks += _ordered(side, seen, rules, depth + 1)
            spanning = []
        spanning += band.closing
    return blocks + _ordered(spanning, seen, rules, depth + 1)


def are_text(lines: Sequence[Placed]) -> bool:
    """Whether the lines are columns of running text, whatever rules are drawn above and below them."""
    parts = [part for part in reading_order(lines) if len(part) >= _MIN_TEXT_LINES and _is_solid(part)]
    return len(parts) >= 2 and sum(map(len, parts)) >= _MIN_SEEN * len(lines)


def _bands(
    lines: Sequence[P], seen: Callable[[Band[P], float], bool], rules: Sequence[Rule]
) -> list[tuple[Band[P], bool]]:
    """Find the gutter with most lines beside it. Returns the stretches between the lines across it, from top to bottom,
    each with whether it has columns; empty without a gutter."""
    if len(lines) < 2 * _MIN_COLUMN_LINES:
        return []
    ordered = sorted(lines, key=_vertical_middle)
    best: list[tuple[Band[P], bool]] = []
    most = 0
    levels = _levels(ordered)
    breaks = _breaks(lines, rules)
    for x in gutters.places(lines):
        bands = list(_along(levels, x, breaks))
        everywhere = _is_gutter(bands)
        judged = [
            (band, not _are_labelled(band) and (_is_columns(band, everywhere=everywhere) or seen(band, x)))
            for band in bands
        ]
        beside = sum(len(band.left) + len(band.right) for band, columns in judged if columns)
        # Lines that cross x count against the gutter, which may belong to other columns further down.
        in_columns = (line for band, columns in judged if columns for line in (*band.left, *band.right))
        beside -= sum(line.left < x < line.right for line in in_columns)
        if beside > most:
            best, most = judged, beside
    return best


def _are_two(band: Band[P]) -> bool:
    return min(len(band.left), len(band.right)) >= 2


def _are_seen(band: Band[P], gutter: float, texts: Sequence[Region]) -> bool:
    """Whether a layout model sees text on both sides of the gutter: most lines of each side lie in text regions that do
    not cross it."""
    if not _are_two(band) or len(texts) < 2:
        return False
    left = [region for region in texts if region.box[0] < region.box[2] <= gutter + _SLACK * band.left[0].size]
    right = [region for region in texts if region.box[2] > region.box[0] >= gutter - _SLACK * band.right[0].size]
    sides = ((band.left, left), (band.right, right))
    return all(_held(lines, seen) >= _MIN_SEEN * len(lines) for lines, seen in sides)


def _held(lines: Sequence[P], seen: Sequence[Region]) -> int:
    count = 0
    for line in lines:
        x, y = (line.left + line.right) / 2, _vertical_middle(line)
        count += any(box[0] <= x <= box[2] and box[1] <= y <= box[3] for _, box, _ in seen)
    return count


def _levels(ordered: Sequence[P]) -> list[list[P]]:
    """Group the lines, given from top to bottom, into those side by side."""
    levels: list[list[P]] = []
    for line in ordered:
        if levels and _vertical_middle(line) - _vertical_middle(levels[-1][0]) <= _LEVEL * line.size:
            levels[-1].append(line)
        else:
            levels.append([line])
    return levels


def _breaks(lines: Sequence[P], rules: Sequence[Rule]) -> list[float]:
    """Return the heights of the horizontal rules that are about as wide as all lines together."""
    slack = (1 - _FULL) * _width(lines)
    left, right = min(line.left for line in lines) + slack, max(line.right for line in lines) - slack
    return sorted(rule.top for rule in rules if rule.left < left and rule.right > right)


def _along(levels: Sequence[list[P]], gutter: float, breaks: Sequence[float]) -> Iterator[Band[P]]:
    """Yield the stretches beside a gutter at this x, from top to bottom; each line or row of a table across the gutter
    ends a stretch, and so do the heights `breaks`. `levels`: the lines from top to bottom, those side by side
    together."""
    left: list[P] = []
    right: list[P] = []
    table = _table_rows(levels, gutter)
    passed = 0
    for number, level in enumerate(levels):
        if (above := bisect_left(breaks, _vertical_middle(level[0]))) > passed:
            yield Band(left, right, [])
            left, right, passed = [], [], above
        if number in table:
            yield Band(left, right, level)
            left, right = [], []
            continue
        for line in level:
            # A line that only reaches into the gutter belongs to its own side.
            if min(gutter - line.left, line.right - gutter) > max(0.0, _REACH * (line.right - line.left)):
                yield Band(left, right, [line])
                left, right = [], []
            else:
                (left if line.left + line.right <= 2 * gutter else right).append(line)
    yield Band(left, right, [])


def _table_rows(levels: Sequence[list[P]], gutter: float) -> set[int]:
    """Return the places of the levels that are rows of a table across the gutter: levels with numbers, of which several
    have numbers on both sides, with the titles between them and the head above them."""
    filled = [number for number, level in enumerate(levels) if len(level) > 1 and any(map(_is_number, level))]
    across = {number for number in filled if _are_across(levels[number], gutter)}
    if len(across) < _MIN_TABLE_ROWS:
        return set()
    rows: set[int] = set()
    start = 0
    for index, number in enumerate(filled, 1):
        if index < len(filled) and filled[index] <= number + 1 + _MAX_TITLES:
            continue
        first, start = filled[start], index
        if len(across.intersection(range(first, number + 1))) >= _MIN_TABLE_ROWS:
            above = range(first - 1, max(-1, first - 1 - _MAX_HEAD), -1)
            rows.update(takewhile(lambda n: _is_head(levels[n], levels[n + 1]), above), range(first, number + 1))
    return rows


def _is_head(level: Sequence[P], below: Sequence[P]) -> bool:
    """Whether a level of several lines is close enough to the level below it to be a row of its head."""
    return len(level) > 1 and below[0].top - level[0].bottom < _MAX_PITCH * below[0].size


def _are_across(level: Sequence[P], gutter: float) -> bool:
    """Whether at least three lines side by side have a number on each side of the gutter."""
    return len(level) >= _MIN_CELLS and len({line.left < gutter for line in level if _is_number(line)}) > 1


def _is_number(piece: Placed) -> bool:
    return isinstance(piece, Line) and is_number(piece.text)


def _is_gutter(bands: Sequence[Band[P]]) -> bool:
    """Whether the gutter separates columns over the whole height; False: each stretch must show its own columns."""
    left = [line for band in bands for line in band.left]
    right = [line for band in bands for line in band.right]
    crossing = sum(bool(band.closing) for band in bands)
    if crossing > _MAX_CROSSING * (len(left) + len(right) + crossing):
        return False
    if min(len(left), len(right)) < _MIN_COLUMN_LINES:
        return False
    width = _width(left + right)
    prose = _is_prose(left, width) and _is_prose(right, width) and not _are_pairs(left, right)
    return prose or _aligned_share(left, right) < _MAX_ALIGNED


def _are_pairs(left: Sequence[P], right: Sequence[P]) -> bool:
    """Whether the sides are labels and their values, row by row, rather than columns.

    Labels reach into the gutter where the other side leaves room, and most of them end long before it."""
    free = min(line.left for line in right) - max(line.right for line in left)
    if free >= gutters.MIN_WIDTH * left[0].size or _aligned_share(left, right) < _MIN_PAIRED:
        return False
    return any(_is_single(side) and _wide_share(side, _LONG) < _MIN_LONG for side in (left, right))


def _are_labelled(band: Band[P]) -> bool:
    """Whether most lines on the right are values: their neighbours on the left are labels, which end with a colon."""
    if not any(map(_is_label, band.left)):
        return False
    values = 0
    for line in band.right:
        middle, tolerance = _vertical_middle(line), _LEVEL * line.size
        first = bisect_left(band.left, middle - tolerance, key=_vertical_middle)
        last = bisect_right(band.left, middle + tolerance, key=_vertical_middle)
        beside = band.left[first:last]
        values += bool(beside) and _is_label(max(beside, key=lambda other: other.right))
    return values > _MIN_LABELLED * len(band.right)


def _is_label(piece: Placed) -> bool:
    return isinstance(piece, Line) and is_label(piece.text)


def _is_single(lines: Sequence[P]) -> bool:
    """Whether nearly all lines are below each other, not side by side."""
    ordered = sorted(lines, key=_vertical_middle)
    beside = sum(_vertical_middle(b) - _vertical_middle(a) <= _LEVEL * a.size for a, b in pairwise(ordered))
    return beside <= _MAX_BROKEN * len(lines)


def _is_columns(band: Band[P], *, everywhere: bool) -> bool:
    left, right = band.left, band.right
    if not everywhere:
        return min(len(left), len(right)) >= _MIN_COLUMN_LINES and _is_solid(left) and _is_solid(right)
    if max(len(left), len(right)) < _MIN_BAND_LINES:
        return False
    if min(len(left), len(right)) < 2 or _aligned_share(left, right) < _MIN_PAIRED:
        return True
    return min(_mean_characters(left), _mean_characters(right)) >= _MIN_PROSE_CHARS


def _is_solid(lines: Sequence[P]) -> bool:
    """Whether the lines form running text: close below each other, many of them as wide as their column."""
    if _mean_characters(lines) < _MIN_PROSE_CHARS:
        return False
    close = sum(b.bottom - a.bottom <= _MAX_PITCH * max(a.size, b.size) for a, b in pairwise(lines))
    return _wide_share(lines, _FULL) >= _MIN_FULL and close >= _MIN_FULL * (len(lines) - 1)


def _is_prose(lines: Sequence[P], region_width: float) -> bool:
    return _width(lines) >= _MIN_COLUMN_SHARE * region_width and _mean_characters(lines) >= _MIN_PROSE_CHARS


def _wide_share(lines: Sequence[P], share: float) -> float:
    """Return the share of the lines that fill at least this share of their column's width."""
    width = _width(lines)
    return sum(line.right - line.left >= share * width for line in lines) / len(lines)


def _width(lines: Sequence[P]) -> float:
    return max(line.right for line in lines) - min(line.left for line in lines)


def _mean_characters(lines: Sequence[P]) -> float:
    return sum(line.characters for line in lines) / len(lines)


def _aligned_share(left: Sequence[P], right: Sequence[P]) -> float:
    """Return the share of lines on the shorter side that are level with a line of the other; nearly 1 in a table."""
    fewer, more = sorted((left, right), key=len)
    middles = sorted(_vertical_middle(line) for line in more)
    level = 0
    for line in fewer:
        tolerance = _LEVEL * line.size
        index = bisect_left(middles, _vertical_middle(line) - tolerance)
        level += index < len(middles) and middles[index] <= _vertical_middle(line) + tolerance
    return level / len(fewer)


def _vertical_middle(line: Placed) -> float:
    return (line.top + line.bottom) / 2

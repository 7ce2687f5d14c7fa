"""Tables between horizontal rules or on coloured stripes: columns are separated where no row has a word."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from pipeline.reading.layout import columns, heads, tables_aligned
from pipeline.reading.layout.borders import WORD_GAP, Border, Placed, borders_of, place, ruled_gap
from pipeline.reading.layout.drawn_rules import Bar, places
from pipeline.reading.layout.model import Box, Line, Table, holds
from pipeline.reading.layout.rows import Row, rows
from pipeline.reading.layout.text import is_number

_MIN_STRIPES = 3
_MIN_LINES = 4
_LONG_ROW = 60
_MAX_SPANNING = 0.25  # of the rows
_MIN_NUMBERS = 0.8  # of the lines between the rules of sums
_LEVEL = 0.25  # text sizes between the middles of a number and its label
_MAX_HEAD = 5
_PARTIAL = 0.9  # of a table's width
_MAX_SPLITS = 40  # Most rules of one width, one above the other, that may belong to several tables.


class _Region(NamedTuple):
    """Horizontal rules of one width above each other, and their heights."""

    left: float
    right: float
    ys: list[float]


class Drawn(NamedTuple):
    """The rules that may belong to a table, the distance at which two touch, and (top, bottom) of each closed box."""

    level: Sequence[Bar]
    upright: Sequence[Bar]
    slack: float
    edges: Sequence[tuple[Bar, Bar]] = ()


class _PlacedTable(NamedTuple):
    table: Table
    held: set[int]
    """The ids of its lines."""


def find(lines: Sequence[Line], drawn: Drawn, fills: Iterable[Box]) -> tuple[list[Table], list[Line]]:
    """Return (tables between horizontal rules or on coloured stripes, lines outside them). The tables may lack vertical
    rules."""
    tables: list[Table] = []
    remaining = list(lines)
    for region in _regions(lines, drawn) + _stripes(fills, drawn.slack):
        for placed in _tables(remaining, region, drawn):
            tables.append(placed.table)
            remaining = [line for line in remaining if id(line) not in placed.held]
    return tables, remaining


def _regions(lines: Sequence[Line], drawn: Drawn) -> list[_Region]:
    """Group horizontal rules that begin and end at the same x; text between two boxes separates their groups."""
    tops, bottoms = {top for top, _ in drawn.edges}, {bottom.at for _, bottom in drawn.edges}
    by_height = sorted(lines, key=_middle)
    regions: list[_Region] = []
    for bar in sorted(drawn.level):
        if bar.end - bar.start < 10 * drawn.slack:
            continue
        near = 3 * drawn.slack
        same = [r for r in regions[-20:] if abs(r.left - bar.start) < near and abs(r.right - bar.end) < near]
        outside = same and (bar in tops or same[-1].ys[-1] in bottoms)
        if same and not (outside and _is_text_above(bar, same[-1].ys[-1], by_height)):
            same[-1].ys.append(bar.at)
        else:
            regions.append(_Region(bar.start, bar.end, [bar.at]))
    return [region for region in regions if len(region.ys) > 1]


def _is_text_above(bar: Bar, since: float, by_height: Sequence[Line]) -> bool:
    """Whether text stands between the height `since` and the rule."""
    between = by_height[bisect_right(by_height, since, key=_middle) : bisect_left(by_height, bar.at, key=_middle)]
    return any(bar.start < (line.left + line.right) / 2 < bar.end for line in between)


def _middle(line: Line) -> float:
    return (line.top + line.bottom) / 2


def _stripes(fills: Iterable[Box], slack: float) -> list[_Region]:
    """Return the places of coloured stripes of one width as if rules ran along the edges of each."""
    by_width: defaultdict[tuple[int, int], list[Box]] = defaultdict(list)
    for box in fills:
        if box[2] - box[0] > 30 * slack and 2 * slack < box[3] - box[1] < 40 * slack:
            by_width[round(box[0] / slack), round(box[2] / slack)].append(box)
    return [
        _Region(boxes[0][0], boxes[0][2], places([y for box in boxes for y in (box[1], box[3])], slack))
        for boxes in by_width.values()
        if len(boxes) >= _MIN_STRIPES
    ]


def _tables(lines: Sequence[Line], region: _Region, drawn: Drawn) -> list[_PlacedTable]:
    """Return the table between the region's rules, or several if these are the rules of tables under each other; empty
    without any."""
    table = _open_table(lines, region, drawn)
    if table is not None:
        return [table]
    if not 4 <= len(region.ys) <= _MAX_SPLITS:
        return []
    # The text between two tables most likely runs across, or stands where the rules are furthest apart.
    inside = [line for line in lines if region.ys[0] < (line.top + line.bottom) / 2 < region.ys[-1]]
    widest = [0.0] * (len(region.ys) - 1)
    for line in inside:
        band = bisect_right(region.ys, (line.top + line.bottom) / 2) - 1
        widest[band] = max(widest[band], min(line.right, region.right) - max(line.left, region.left))
    gaps = [b - a for a, b in pairwise(region.ys)]
    order = range(1, len(gaps) - 1)
    cut = max(order, key=lambda band: (widest[band] > 0.7 * (region.right - region.left), gaps[band]))
    above, below = region._replace(ys=region.ys[: cut + 1]), region._replace(ys=region.ys[cut + 1 :])
    return [*_tables(lines, above, drawn), *_tables(lines, below, drawn)]


def _open_table(lines: Sequence[Line], region: _Region, drawn: Drawn) -> _PlacedTable | None:
    """Return the table between horizontal rules, with columns separated where no row has a word."""
    slack = drawn.slack
    box = (region.left - 2 * slack, region.ys[0] - slack, region.right + 2 * slack, region.ys[-1] + slack)
    inside = [line for line in lines if holds(box, line)]
    # Lines that reach beyond the rules belong to no table between them.
    if len(inside) < _MIN_LINES or any(
        line.left < box[0] - 2 * slack or line.right > box[2] + 2 * slack for line in inside
    ):
        return None
    if columns.are_text(inside) or _are_sums(inside, lines, box):
        return None
    table_rows = rows(inside)
    bands = [bisect_right(region.ys, (row.top + row.bottom) / 2) for row in table_rows]
    head = bands.count(bands[0])
    head = head if head <= _MAX_HEAD and head < len(table_rows) else 1
    partial = [
        bar
        for bar in drawn.level
        if region.left - slack < bar.start
        and bar.end < region.right + slack
        and bar.end - bar.start < _PARTIAL * (region.right - region.left)
    ]
    # Two rules, one above and one below, may frame anything.
    gap = ruled_gap(inside) if len(region.ys) > 2 else WORD_GAP
    head = _head(table_rows, head, partial)
    upright = _drawn_borders(region, box, drawn)
    borders = _with_drawn(_borders(table_rows, head, gap if len(region.ys) > 2 else None), upright)
    placed = [place(row.cells, borders, gap) for row in table_rows]
    if not borders or not _is_table(table_rows, placed, head, borders):
        return None
    if not upright and len(tables_aligned.parted(table_rows, 0, len(table_rows), 0)) > 1:
        return None
    placed[:head] = heads.spanned(placed, head, len(borders) + 1, partial)
    separated = [index == 0 or bands[index] != bands[index - 1] for index in range(len(table_rows))]
    whole = (region.left, box[1], region.right, box[3])
    table = tables_aligned.build(placed, len(borders) + 1, inside, header=head, separated=separated, box=whole)
    return _PlacedTable(table, {id(line) for line in inside})


def _are_sums(inside: Sequence[Line], lines: Sequence[Line], box: Box) -> bool:
    """Whether the rules are those of sums: they cover only numbers, whose labels stand on their left."""
    if sum(is_number(line.text) for line in inside) < _MIN_NUMBERS * len(inside):
        return False
    labels = sorted(_middle(line) for line in lines if line.right < box[0] and any(map(str.isalpha, line.text)))
    labelled = 0
    for line in inside:
        near = _LEVEL * line.size
        labelled += bisect_left(labels, _middle(line) - near) < bisect_right(labels, _middle(line) + near)
    return labelled >= _MIN_NUMBERS * len(inside)


def _head(table_rows: Sequence[Row], head: int, partial: Sequence[Bar]) -> int:
    """Return the number of rows of the head, including rows above a rule that covers part of the table right below
    them."""
    for index in range(head, min(_MAX_HEAD, len(table_rows) - 1)):
        if not any(
            table_rows[index].bottom - table_rows[index].size < bar.at < table_rows[index + 1].bottom for bar in partial
        ):
            break
        head = index + 1
    return head


def _with_drawn(borders: Sequence[Border], drawn: Sequence[Border]) -> list[Border]:
    """Return the borders that the text shows, with drawn borders in place of those that contain a drawn rule."""
    others = [border for border in borders if not any(border.low <= rule.low <= border.high for rule in drawn)]
    return sorted([*drawn, *others])


def _drawn_borders(region: _Region, box: Box, drawn: Drawn) -> list[Border]:
    """Return the vertical rules that run through most of the region."""
    ruled = [
        bar.at
        for bar in drawn.upright
        if region.left + drawn.slack < bar.at < region.right - drawn.slack
        and min(bar.end, box[3]) - max(bar.start, box[1]) > 0.7 * (box[3] - box[1])
    ]
    return [Border(x, x) for x in places(ruled, drawn.slack)]


def _is_table(
    table_rows: Sequence[Row], placed: Sequence[Sequence[Placed]], head: int, borders: Sequence[Border]
) -> bool:
    if len(table_rows) < 2 or not any(len(row) > 1 for row in placed[: max(2, head)]):
        return False  # The first rows must fill several columns.
    if _is_text(placed[head:], len(borders)):
        return False
    return tables_aligned.looks_tabular(placed, borders, [line for row in table_rows for line in row.cells])


def _borders(table_rows: Sequence[Row], head: int, gap: float | None) -> list[Border]:
    """Return the column borders, shown by the head's last row and the rows below it, if these are enough."""
    telling = table_rows[head - 1 :] if len(table_rows) - head >= 3 else table_rows
    return borders_of([row.cells for row in telling], gap)


def _is_text(placed: Sequence[Sequence[Placed]], last_column: int) -> bool:
    """Whether many rows run across the columns, or some are as long as text, other than titles of groups of rows."""
    spanning = [cell for row in placed for cell in row if cell.first != cell.last]
    lengths = [sum(len(line.text) for line in cell.lines) for cell in spanning]
    long = [
        length
        for cell, length in zip(spanning, lengths, strict=True)
        if cell.last - cell.first == last_column and length > _LONG_ROW
    ]
    lone = [len(row) == 1 and row[0].first != row[0].last for row in placed]
    if len(long) > 1 or any(a and b for a, b in pairwise(lone)):
        return True
    return len(spanning) - (0 if long else sum(lone)) > max(1, _MAX_SPANNING * len(placed)) or 2 * sum(lone) > len(lone)

"""Tables with rules: cell by cell if the rules form a grid, by columns if all rules are horizontal."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pipeline.reading.layout import tables_open
from pipeline.reading.layout.cells import cell_runs, cut, text_size, without_empty
from pipeline.reading.layout.drawn_rules import MAX_RULES, Bar, bars, covered, places, touching
from pipeline.reading.layout.model import Box, Cell, Line, Rule, Table, holds
from pipeline.reading.layout.rows import Row, rows

_SLACK = 0.3  # text sizes
_MAX_CELLS = 40_000
_MIN_STRIPES = 3
_MAX_LONE_SHARE = 0.6  # If one cell has a larger share of the text, the rules frame a page and not a table.
_MAX_TABULAR = 2
_LABEL = 0.85  # of the size of the value
_LONG_CELL = 400
_LONG_ROW = 60
_MAX_SPANNING = 0.25  # of the rows
_WORD_GAP = 0.6  # text sizes
_CLOSED = 0.8  # Share of a box's height along which its sides are drawn.


class Partition(NamedTuple):
    """The tables, the lines outside them, and the closed boxes that rules form but are not tables."""

    tables: list[Table]
    lines: list[Line]
    boxes: Sequence[Box] = ()


def find(lines: Sequence[Line], rules: Sequence[Rule], fills: Sequence[Box]) -> Partition:
    """Return the tables that rules or coloured stripes show, and the lines outside them; no tables on a page with too
    many rules, which is a drawing."""
    if not lines or not (rules or fills):
        return Partition([], list(lines))
    slack = _SLACK * text_size(lines)
    level, upright = bars(rules, slack)
    if max(len(level), len(upright)) > MAX_RULES:
        return Partition([], list(lines))
    tables: list[Table] = []
    lone: list[Bar] = []
    edges: list[tuple[Bar, Bar]] = []
    remaining = list(lines)
    for across, down in _stacked(touching(level, upright, slack), slack):
        table, inside = _grid_table(remaining, across, down, slack)
        if table is None:
            lone += across
            edges += _box_edges(across, down, slack)
            continue
        tables.append(table)
        remaining = [line for line in remaining if id(line) not in inside]
    drawn = tables_open.Drawn(lone, upright, slack, edges)
    more, remaining = tables_open.find(remaining, drawn, fills)
    boxes = [(min(a.start, b.start), a.at, max(a.end, b.end), b.at) for a, b in edges]
    return Partition([*tables, *more], remaining, boxes)


Group = tuple[list[Bar], list[Bar]]


def _box_edges(across: Sequence[Bar], down: Sequence[Bar], slack: float) -> list[tuple[Bar, Bar]]:
    """Return [(top, bottom)] of the closed box that the rules form; empty if they form none."""
    top, bottom = min(across), max(across)
    left, right = min(bar.start for bar in across), max(bar.end for bar in across)
    sides = ([bar for bar in down if abs(bar.at - x) < 3 * slack] for x in (left, right))
    return [(top, bottom)] if all(covered(top.at, bottom.at, side) > _CLOSED for side in sides) else []


def _stacked(groups: Sequence[Group], slack: float) -> list[Group]:
    """Join grids of one width right above each other, since double rules separate heads."""
    stacked: list[Group] = []
    for across, down in sorted((g for g in groups if g[0]), key=lambda group: min(bar.at for bar in group[0])):
        before = stacked[-1] if stacked else None
        if before and down and before[1]:
            apart = min(bar.at for bar in across) - max(bar.at for bar in before[0])
            left = min(bar.start for bar in across) - min(bar.start for bar in before[0])
            right = max(bar.end for bar in across) - max(bar.end for bar in before[0])
            if 0 <= apart < 3 * slack and max(abs(left), abs(right)) < 2 * slack:
                stacked[-1] = (before[0] + across, before[1] + down)
                continue
        stacked.append((across, down))
    return stacked


class _Grid:
    """The columns and rows of a grid of rules, and which neighbouring places a drawn rule separates."""

    def __init__(self, across: Sequence[Bar], down: Sequence[Bar], slack: float) -> None:
        left = min(bar.start for bar in across)
        right = max(bar.end for bar in across)
        top, bottom = min(bar.at for bar in across), max(bar.at for bar in across)
        self.xs = places([left, right, *(bar.at for bar in down)], 1.5 * slack)
        self.ys = places([top, bottom, *(bar.at for bar in across)], slack)
        self._across: defaultdict[int, list[Bar]] = defaultdict(list)
        self._down: defaultdict[int, list[Bar]] = defaultdict(list)
        for bar in across:
            self._across[_nearest(self.ys, bar.at)].append(bar)
        for bar in down:
            self._down[_nearest(self.xs, bar.at)].append(bar)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.ys) - 1, len(self.xs) - 1

    @property
    def box(self) -> Box:
        return (self.xs[0], self.ys[0], self.xs[-1], self.ys[-1])

    def is_open_right(self, row: int, column: int) -> bool:
        return covered(self.ys[row], self.ys[row + 1], self._down[column + 1]) < 0.5

    def is_open_below(self, row: int, column: int) -> bool:
        return covered(self.xs[column], self.xs[column + 1], self._across[row + 1]) < 0.5


def _nearest(values: Sequence[float], value: float) -> int:
    index = bisect_right(values, value)
    return min((i for i in (index - 1, index) if 0 <= i < len(values)), key=lambda i: abs(values[i] - value))


def _grid_table(
    lines: Sequence[Line], across: Sequence[Bar], down: Sequence[Bar], slack: float
) -> tuple[Table | None, set[int]]:
    if len(across) < 2 or not down:
        return None, set()
    grid = _Grid(across, down, slack)
    height, width = grid.shape
    if height < 1 or width < 2 or height * width > _MAX_CELLS or (height == 1 and width < 3):
        return None, set()
    inside = [line for line in lines if holds(grid.box, line)]
    held: defaultdict[tuple[int, int], list[Line]] = defaultdict(list)
    crossed: set[tuple[int, int]] = set()  # places whose right border a phrase crosses
    for line in inside:
        row = min(height - 1, max(0, bisect_right(grid.ys, (line.top + line.bottom) / 2) - 1))
        parts = cut(line, grid.xs[1:-1])
        for column, piece in parts:
            held[row, column].append(piece)
        crossed.update((row, a[0]) for a, b in pairwise(parts) if b[1].left - a[1].right < _WORD_GAP * line.size)
    areas = _merged_cells(grid, held, crossed)
    if not _is_convincing(areas, held):
        return None, set()
    table_rows = without_empty(_as_rows(areas, held, height))
    if len(table_rows) < 2:
        return None, set()
    table = Table(grid.box, tuple(table_rows), 1, text_size(inside))
    return table, {id(line) for line in inside}


class _Area(NamedTuple):
    row: int
    column: int
    rows: int
    columns: int

    @property
    def places(self) -> list[tuple[int, int]]:
        return [
            (row, column)
            for row in range(self.row, self.row + self.rows)
            for column in range(self.column, self.column + self.columns)
        ]


def _merged_cells(grid: _Grid, held: dict[tuple[int, int], list[Line]], crossed: set[tuple[int, int]]) -> list[_Area]:
    """Merge places without a rule between them into cells, in the order of their first places."""
    height, width = grid.shape
    occupied: set[tuple[int, int]] = set()
    areas = []
    for row in range(height):
        for column in range(width):
            if (row, column) in occupied:
                continue
            area = _grown(grid, row, column, occupied)
            for part in _apart(area, held, crossed):
                areas.append(part)
                occupied.update(part.places)
    return areas


def _grown(grid: _Grid, row: int, column: int, occupied: set[tuple[int, int]]) -> _Area:
    height, width = grid.shape
    columns = 1
    while (
        column + columns < width
        and (row, column + columns) not in occupied
        and grid.is_open_right(row, column + columns - 1)
    ):
        columns += 1
    rows_ = 1
    while row + rows_ < height and all(
        grid.is_open_below(row + rows_ - 1, c) and (row + rows_, c) not in occupied
        for c in range(column, column + columns)
    ):
        rows_ += 1
    return _Area(row, column, rows_, columns)


def _apart(area: _Area, held: dict[tuple[int, int], list[Line]], crossed: set[tuple[int, int]]) -> list[_Area]:
    """Split the area into its columns if its lines keep to the columns although no rule separates them."""
    filled = {column for row, column in area.places if held.get((row, column))}
    if area.columns == 1 or len(filled) < 2:
        return [area]
    if any(place in crossed for place in area.places):
        return [area]
    return [area._replace(column=column, columns=1) for column in range(area.column, area.column + area.columns)]


def _is_convincing(areas: Sequence[_Area], held: dict[tuple[int, int], list[Line]]) -> bool:
    """Whether the rules hold a table's cells, and are not a frame, a chart or a form around running text."""
    lengths = [sum(len(line.text) for place in area.places for line in held.get(place, ())) for area in areas]
    filled = [area for area, length in zip(areas, lengths, strict=True) if length]
    if len({area.row for area in filled}) < 2 and sum(len(lines) > 1 for lines in held.values()) < 2:
        return False
    if len({area.column for area in filled}) < 2 or len(filled) < 0.15 * len(areas):
        return False
    for area in filled:  # Rules around lines with columns of their own do not form a table.
        cell_rows = rows(line for place in area.places for line in held.get(place, ()))
        if sum(row.is_tabular for row in cell_rows) > _MAX_TABULAR:
            return False
    longest = max(lengths)
    return longest < _LONG_CELL or longest < _MAX_LONE_SHARE * sum(lengths)


def _as_rows(areas: Sequence[_Area], held: dict[tuple[int, int], list[Line]], height: int) -> list[list[Cell]]:
    """Return rows of cells; a ruled row with several rows of text in most columns becomes that many rows."""
    table_rows: list[list[Cell]] = []
    by_row: defaultdict[int, list[_Area]] = defaultdict(list)
    for area in areas:
        by_row[area.row].append(area)
    for number in range(height):
        row = by_row[number]
        contents = [[line for place in area.places for line in held.get(place, ())] for area in row]
        parts = _records(row, contents) if len(row) > 1 else None
        if parts:
            table_rows += parts
        else:
            table_rows.append(
                [Cell(cell_runs(lines), area.rows, area.columns) for area, lines in zip(row, contents, strict=True)]
            )
    return table_rows


def _records(areas: Sequence[_Area], contents: Sequence[Sequence[Line]]) -> list[list[Cell]] | None:
    """Split one ruled row into several table rows if most of its filled cells have the same number of text rows.

    Returns None if they do not, for spanning cells, and for wrapped sentences: the row then stays whole.
    """
    if any(area.rows > 1 or area.columns > 1 for area in areas):
        return None
    stacks = [rows(cell) for cell in contents]
    used = [stack for stack in stacks if stack]
    counts = Counter(len(stack) for stack in used)
    number, share = counts.most_common(1)[0] if counts else (0, 0)
    if number < 2 or len(used) < 2 or share < max(2, 0.6 * len(used)) or _is_wrapped(contents):
        return None
    if 2 * sum(stack[0].size < _LABEL * stack[-1].size for stack in used) > len(used):
        return None  # small labels, each above its value
    if any(len(stack) < number for stack in used if stack is used[0]):
        return None
    heights = [median(_middle(stack[index]) for stack in used if len(stack) == number) for index in range(number)]
    records: list[list[list[Line]]] = [[[] for _ in areas] for _ in range(number)]
    for column, stack in enumerate(stacks):
        for row in stack:
            records[_nearest(heights, _middle(row))][column] += row.cells
    return [[Cell(cell_runs(lines)) for lines in record] for record in records]


def _middle(row: Row) -> float:
    return (row.top + row.bottom) / 2


def _is_wrapped(contents: Sequence[Sequence[Line]]) -> bool:
    """Whether the cells hold sentences that continue from line to line."""
    pairs = [(a.text, b.text) for cell in contents for a, b in pairwise(cell)]
    wrapped = sum(b[:1].islower() or a.endswith((",", "-", "\u00ad")) for a, b in pairs)
    return wrapped > 0.3 * len(pairs)

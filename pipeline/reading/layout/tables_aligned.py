"""Tables without rules between their cells: columns are separated where many rows have no word."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, takewhile
from statistics import mean, median
from typing import NamedTuple

from pipeline.reading.layout.cells import cell_runs, spans_of, sub_line, text_size
from pipeline.reading.layout.model import Box, Cell, Line, Span, Table, around
from pipeline.reading.layout.rows import Row
from pipeline.reading.layout.text import has_leader, is_bullet

_MIN_ROWS = 3
_MAX_ROWS = 2_000
_MAX_COLUMNS = 60
_MAX_PARTS = 12
_BIN = 0.2  # text sizes
_MAX_BINS = 3_000
_MIN_GAP = 0.9  # text sizes
_WORD_GAP = 0.6
_WRAPPED_FILL = 0.6  # share of its column's width that a wrapped line fills at least
_TIGHT_HEAD = 1.7
_TIGHT = 1.45  # text sizes from a cell's line to its next one
_PROSE_CHARS = 28
_PROSE_FILL = 0.8
_NUMERIC = re.compile(
    r"[-+−(±<>~≈]?[$€£¥₩]?[-+−]?\d[\d,.\s'/:±%()]*[A-Za-z%€$£°×]{0,4}[)*†]?|[-–—]|n/?a|nan", re.IGNORECASE
)


class Border(NamedTuple):
    """The gap between two columns; of no width where a rule is."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


class Placed(NamedTuple):
    """A cell's lines, in the columns from `first` to `last`."""

    first: int
    last: int
    lines: list[Line]


def split(rows: Sequence[Row]) -> list[list[Row] | Table]:
    """The rows of a block from top to bottom, those of a table replaced by it."""
    found: list[list[Row] | Table] = []
    start = 0
    for begin, end in _attempts(rows):
        first, table = begin, _table(rows[begin:end])
        if table is None:
            continue
        if first > start and _is_head(rows[first - 1], rows[first:end]):
            with_head = _table(rows[first - 1 : end], borders_of([row.cells for row in rows[first:end]]))
            first, table = (first - 1, with_head) if with_head else (first, table)
        if start < first:
            found.append(list(rows[start:first]))
        found.append(table)
        start = end
    if start < len(rows):
        found.append(list(rows[start:]))
    return found


def _stretches(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """(first, end) of rows that may be a table: rows of cells with at most one row of one piece between them."""
    found: list[tuple[int, int]] = []
    first = last = -1
    for index, row in enumerate(rows):
        near = first >= 0 and row.top - rows[index - 1].bottom < 2.5 * max(row.size, rows[index - 1].size)
        if not near or index - last > 2:
            if first >= 0:
                found.append((first, last + 1))
            first = -1
        if row.is_tabular:
            first, last = (index if first < 0 else first), index
    if first >= 0:
        found.append((first, last + 1))
    return [part for first, end in found if end - first >= 2 for part in parted(rows, first, end, 0)]


def _attempts(rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """The stretches; those that are not a table are split at their rows of one piece."""
    for first, end in _stretches(rows):
        lone = [n for n in range(first, end) if not (rows[n].is_tabular or rows[n].has_marker)]
        if not lone or len(lone) > _MAX_PARTS or _table(rows[first:end]):
            yield first, end
            continue
        edges = [first - 1, *lone, end]
        yield from ((a + 1, b) for a, b in pairwise(edges) if b - a > 2)


def parted(rows: Sequence[Row], first: int, end: int, depth: int) -> list[tuple[int, int]]:
    """The stretch, cut at rows of one piece if the columns above and below differ: tables under each other."""
    if end - first > _MAX_ROWS or depth > _MAX_PARTS:
        return [(first, end)]
    whole = _columns_of(rows[first:end])
    lone = [n for n in range(first + 2, end - 2) if not (rows[n].is_tabular or rows[n].has_marker)]
    best, place = whole, -1
    for index in lone[:_MAX_PARTS]:
        above, below = _columns_of(rows[first:index]), _columns_of(rows[index + 1 : end])
        if min(above, below) >= max(1, whole) and max(above, below) > whole and above + below > best:
            best, place = above + below, index
    if place < 0:
        return [(first, end)]
    return [*parted(rows, first, place, depth + 1), *parted(rows, place + 1, end, depth + 1)]


def _columns_of(rows: Sequence[Row]) -> int:
    """How many borders are between the columns of the rows."""
    return len(borders_of([row.cells for row in rows]))


def _is_head(row: Row, below: Sequence[Row]) -> bool:
    """Whether a row right above a table has a piece for each column, however close together."""
    if below[0].top - row.bottom > 1.5 * row.size:
        return False
    placed = place(row.cells, borders_of([row.cells for row in below]))
    columns = 1 + _columns_of(below)
    return len(placed) >= max(2, columns - 1) and all(cell.first == cell.last for cell in placed)


def _table(rows: Sequence[Row], head_borders: Sequence[Border] = ()) -> Table | None:
    tabular = [row for row in rows if row.is_tabular]
    if len(rows) > _MAX_ROWS or len(tabular) < 2:
        return None
    if sum(has_leader(row.text) for row in rows) > 0.4 * len(rows):
        return None  # a list of contents
    lines = [cell for row in rows for cell in row.cells]
    borders = list(head_borders) or borders_of([row.cells for row in rows])
    if not borders or (len(tabular) < _MIN_ROWS and len(borders) < 2):
        return None
    placed = [place(row.cells, borders) for row in rows]
    if not looks_tabular(placed, borders, lines) or not _is_convincing(placed, len(borders) + 1):
        return None
    bold = len(list(takewhile(lambda row: row.is_bold, rows[:3])))
    header = bold if not head_borders and 1 <= bold < len(rows) else 1
    return build(placed, len(borders) + 1, lines, header=header)


def borders_of(rows: Sequence[Sequence[Line]]) -> list[Border]:
    """The stretches of x where the rows have no word; rows that run across are left out."""
    lines = [line for row in rows for line in row]
    size = text_size(lines)
    left, right = min(line.left for line in lines), max(line.right for line in lines)
    width = right - left
    if width <= 0:
        return []
    step = max(_BIN * size, width / _MAX_BINS)
    bins = int(width / step) + 1
    phrases = _telling([[_whole(part) for line in row for part in _phrases(line)] for row in rows], width)
    cover = _cover([span for row in phrases for span in row], left, step, bins)
    least = _MIN_GAP if len(phrases) > 3 else 1.4
    allowed = len(phrases) // 12
    borders: list[Border] = []
    start = None
    for index, level in enumerate([*cover, allowed + 1]):
        if level <= allowed and start is None:
            start = index
        elif level > allowed and start is not None:
            if start > 0 and index < bins and (index - start) * step >= least * size:
                borders.append(Border(left + start * step, left + index * step))
            start = None
    return borders[:_MAX_COLUMNS]


def _telling(rows: list[list[Span]], width: float) -> list[list[Span]]:
    """The rows that show where columns are: those with as many pieces as most, without those that run across."""
    most = sorted(map(len, rows))[len(rows) // 2]
    full = [row for row in rows if len(row) >= most]
    if most > 1 and len(full) >= max(3, 0.6 * len(rows)):
        return full
    return [row for row in rows if len(row) > 1 or row[0].right - row[0].left <= 0.5 * width] or rows


def _whole(words: Sequence[Span]) -> Span:
    return words[0]._replace(right=max(span.right for span in words))


def _phrases(line: Line) -> list[list[Span]]:
    """The words of the line, those that follow each other with a usual space together."""
    found: list[list[Span]] = []
    for span in spans_of(line):
        if found and span.left - found[-1][-1].right < _WORD_GAP * line.size:
            found[-1].append(span)
        else:
            found.append([span])
    return found


def _cover(spans: Sequence[Span], left: float, step: float, bins: int) -> list[int]:
    changes = [0] * (bins + 1)
    for span in spans:
        first, last = sorted((span.left, span.right))
        changes[min(bins, max(0, int((first - left) / step)))] += 1
        changes[min(bins, max(0, int((last - left) / step)) + 1)] -= 1
    return list(accumulate(changes[:bins]))


def place(cells: Sequence[Line], borders: Sequence[Border]) -> list[Placed]:
    """The lines of one row in their columns. Words with usual spaces between them that cross a border stay together,
    in a cell that spans columns."""
    found: list[Placed] = []
    for line in sorted(cells, key=lambda line: line.left):
        phrases = _phrases(line)
        for part in [sub_line(line, spans) for spans in phrases] if len(phrases) > 1 else [line]:
            first, last = _columns(part, borders)
            before = found[-1] if found else None
            if before is not None and first <= before.last:
                found[-1] = Placed(before.first, max(last, before.last), [*before.lines, part])
            else:
                found.append(Placed(first, last, [part]))
    return found


def _columns(line: Line, borders: Sequence[Border]) -> tuple[int, int]:
    """The first and the last column of the line; a line that ends in the gap before a column is not in it."""
    width = line.right - line.left
    slack = max(0.1 * line.size, min(0.12 * width, 1.5 * line.size))
    middle = (line.left + line.right) / 2
    first = sum(line.left >= border.low - slack and middle > border.middle for border in borders)
    last = sum(line.right > border.high + slack for border in borders)
    return first, max(first, last)


def looks_tabular(placed: Sequence[Sequence[Placed]], borders: Sequence[Border], lines: Sequence[Line]) -> bool:
    """Whether these are cells and neither columns of running text nor a list's markers and items."""
    several = [row for row in placed if len(row) > 1]
    if len(several) < 0.4 * len(placed):
        return False
    edges = [
        min(line.left for line in lines),
        *(border.middle for border in borders),
        max(line.right for line in lines),
    ]
    prose = 0
    for column in range(len(borders) + 1):
        inside = [cell for row in placed for cell in row if cell.first == cell.last == column]
        texts = [" ".join(line.text for line in cell.lines) for cell in inside]
        if not texts:
            continue
        width = edges[column + 1] - edges[column]
        fill = median((cell.lines[-1].right - cell.lines[0].left) / max(width, 1e-9) for cell in inside)
        prose += mean(map(len, texts)) > _PROSE_CHARS and fill > _PROSE_FILL
        if (
            column == 0
            and len(borders) == 1
            and all(is_bullet(text) or re.fullmatch(r"\W?\w{1,3}[.)]", text) for text in texts)
        ):
            return False
    return prose < 2


def _is_convincing(placed: Sequence[Sequence[Placed]], columns: int) -> bool:
    """Whether it is more than two stacks of lines side by side, as under a title."""
    if columns > 2 and len(placed) > 3:
        return True
    texts = [" ".join(line.text for line in cell.lines).strip() for row in placed for cell in row[1:]]
    numbers = sum(bool(_NUMERIC.fullmatch(text)) for text in texts)
    if numbers >= 0.4 * len(texts):
        return True
    starts = sorted(row[1].lines[0].left for row in placed if len(row) > 1)
    flush = sum(abs(x - starts[len(starts) // 2]) < 2 for x in starts) >= 0.7 * len(starts)
    return len(placed) >= 4 and flush


def build(
    placed: Sequence[Sequence[Placed]],
    columns: int,
    lines: Sequence[Line],
    *,
    header: int,
    separated: Sequence[bool] | None = None,
    box: Box | None = None,
) -> Table:
    """The table of these rows; a row that continues the row above joins its cells.

    `separated` says of each row whether a rule separates it from the row above; if given, it decides.
    """
    merged: list[list[Placed]] = []
    kept_header = header
    for index, row in enumerate(placed):
        if merged and _continues(placed, index, header, separated):
            by_column = {cell.first: cell for cell in merged[-1]}
            for cell in row:
                above = by_column.get(cell.first)
                by_column[cell.first] = above._replace(lines=[*above.lines, *cell.lines]) if above else cell
            merged[-1] = [by_column[column] for column in sorted(by_column)]
            kept_header -= index < header
        else:
            merged.append(list(row))
    made = [_cells(row, columns) for row in merged]
    whole = box or around([line.box for line in lines])
    return Table(whole, tuple(tuple(row) for row in made), max(1, min(kept_header, len(made))), text_size(lines))


def _continues(placed: Sequence[Sequence[Placed]], index: int, header: int, separated: Sequence[bool] | None) -> bool:
    """Whether a row only holds more lines of the cells above."""
    row, above = placed[index], placed[index - 1]
    if not row or not above or (separated is not None and separated[index]):
        return False
    if any(cell.first != cell.last for cell in (*row, *above)):
        return False
    pitch = row[0].lines[0].bottom - above[0].lines[0].bottom
    columns, filled = {cell.first for cell in row}, {cell.first for cell in above}
    if index < header:  # A head of several lines: each cell is below one of the line above.
        return pitch < _TIGHT_HEAD * row[0].lines[0].size and (columns <= filled or len(row) < len(above))
    if (
        pitch >= _TIGHT * row[0].lines[0].size
        or (index == header and separated is None)
        or row[0].first == 0
        or not columns <= filled
    ):
        return False
    if any(_NUMERIC.fullmatch(line.text) for cell in row for line in cell.lines):
        return False
    return separated is not None or (2 * len(row) <= len(above) and _wraps(placed, index))


def _wraps(placed: Sequence[Sequence[Placed]], index: int) -> bool:
    """Whether each cell above ended for lack of space: it is about as wide as any in its column."""
    for cell in placed[index]:
        text = cell.lines[0].text
        column = [other for row in placed for other in row if other.first == other.last == cell.first]
        room = max(other.lines[-1].right for other in column)
        above = next(other for other in placed[index - 1] if other.first == cell.first)
        start = min(other.lines[0].left for other in column)
        if above.lines[-1].right - above.lines[0].left < _WRAPPED_FILL * (room - start):
            return False
        word = len(text.split()[0]) / max(len(text), 1) * (cell.lines[0].right - cell.lines[0].left)
        if not text[:1].islower() and above.lines[-1].right + word < room - above.lines[-1].size:
            return False
    return True


def _cells(row: Sequence[Placed], columns: int) -> list[Cell]:
    found: list[Cell] = []
    column = 0
    for cell in row:
        found += [Cell()] * (cell.first - column)
        found.append(Cell(cell_runs(cell.lines), columns=cell.last - cell.first + 1))
        column = cell.last + 1
    return found + [Cell()] * (columns - column)

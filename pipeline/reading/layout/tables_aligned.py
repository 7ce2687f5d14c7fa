"""Tables without rules between their cells: columns are separated where many rows have no word."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from statistics import mean, median

from pipeline.reading.layout import heads
from pipeline.reading.layout.borders import Border, Placed, borders_of, place, without_symbols
from pipeline.reading.layout.cells import cell_runs, text_size
from pipeline.reading.layout.drawn_rules import Bar
from pipeline.reading.layout.model import Box, Cell, Line, Table, around
from pipeline.reading.layout.rows import Row
from pipeline.reading.layout.text import NUMBER, PAIR, has_leader, is_bullet, is_number

_MIN_ROWS = 3
_MAX_ROWS = 2_000
_MAX_PARTS = 12
_MAX_HEAD = 4
_PROMPTS = frozenset({"+", ">", "R>", "$", "%", "#", ">>>", "..."})
"""Signs at the starts of lines typed into a program."""

_FLUSH = 0.3  # text sizes between the starts of cells below each other
_HEADING = 1.15  # of the text above: a heading between two tables
_PARTIAL = 0.9  # of a table's width
_YEAR = re.compile(r"(?:19|20)\d\d")
_WRAPPED_FILL = 0.6  # least share of its column's width that a wrapped line fills
_TIGHT_HEAD = 1.7
_LOOSE = 2.0  # as _TIGHT, for the only cell of a row, in lower case
_TIGHT = 1.45  # text sizes from a cell's line to its next line
_PROSE_CHARS = 28
_PROSE_FILL = 0.8


def split(rows: Sequence[Row], rules: Sequence[Bar] = ()) -> list[list[Row] | Table]:
    """Return the rows of a block, given from top to bottom: lists of rows of text, and between them each table that the
    alignment of words shows, in place of its rows. `rules`: the horizontal rules, which show the spans of heads."""
    parts: list[list[Row] | Table] = []
    start = 0
    for begin, end in _attempts(rows):
        first, table = begin, _table(rows[begin:end], (), rules)
        if table is None:
            continue
        if first > start and _is_head(rows[first - 1], rows[first:end]):
            with_head = _table(rows[first - 1 : end], borders_of([row.cells for row in rows[first:end]]), rules)
            first, table = (first - 1, with_head) if with_head else (first, table)
        first, table = _with_period(rows, first, start, end, rules) or (first, table)
        if start < first:
            parts.append(list(rows[start:first]))
        parts += _sections(rows[first:end]) or [table]
        start = end
    if start < len(rows):
        parts.append(list(rows[start:]))
    return parts


def _sections(rows: Sequence[Row]) -> list[list[Row] | Table]:
    """Return the tables of one set of columns, and between them the larger rows of one cell, which are their headings;
    empty without such rows."""
    size = median(row.size for row in rows)
    titles = [n for n, row in enumerate(rows) if not row.is_tabular and row.size > _HEADING * size]
    if not titles:
        return []
    borders = borders_of([row.cells for row in rows])
    parts: list[list[Row] | Table] = []
    for title, end in pairwise([-1, *titles, len(rows)]):
        if title >= 0:
            parts.append([rows[title]])
        section = rows[title + 1 : end]
        table = _table(section, borders, is_sure=True)
        if section:
            parts.append(table or list(section))
    return parts


def _with_period(
    rows: Sequence[Row], first: int, start: int, end: int, rules: Sequence[Bar]
) -> tuple[int, Table] | None:
    """Return (index of the first row, table) with the row right above, if that is one cell centred over several of the
    columns; otherwise None."""
    row, below = rows[first - 1] if first > start else None, rows[first:end]
    if row is None or len(row.cells) > 1 or below[0].top - row.bottom > row.size:
        return None
    borders = borders_of([row.cells for row in below])
    if not borders or row.left < borders[0].low:
        return None
    placed = [place(row.cells, borders) for row in below]
    if not heads.reaches(place(row.cells, borders), placed, len(borders) + 1):
        return None
    table = _table(rows[first - 1 : end], borders, rules)
    return (first - 1, table) if table and table.header > 1 else None


def _stretches(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return (first, end) of possible tables: rows of cells, with at most one other row between two of them, or two
    titles that end before the last column. Labels with their values above a table are not part of it."""
    stretches: list[tuple[int, int]] = []
    first = last = -1
    cells: tuple[Line, ...] = ()
    right = max((row.right for row in rows), default=0.0)
    for index, row in enumerate(rows):
        near = first >= 0 and row.top - rows[index - 1].bottom < 2.5 * max(row.size, rows[index - 1].size)
        between = rows[last + 1 : index]
        if near and last == index - 1 and _is_wrapped(row, rows[last], cells, right):
            last = index
            continue
        titles = len(between) == 2 and bool(cells) and all(row.right < cells[-1].left for row in between)
        if not near or index - last > 2 + titles:
            if first >= 0:
                stretches.append((first, last + 1))
            first = -1
        if row.is_tabular:
            first, last, cells = (index if first < 0 else first), index, row.cells
    if first >= 0:
        stretches.append((first, last + 1))
    stretches = [(first + _pairs(rows[first:end]), end) for first, end in stretches]
    return [part for first, end in stretches if end - first >= 2 for part in parted(rows, first, end, 0)]


def _is_wrapped(row: Row, above: Row, cells: Sequence[Line], right: float) -> bool:
    """Whether the row is the next line of the last of these cells, whose line so far ends with `above`: its first word
    had no room there. `right`: the right end of all rows."""
    level = abs(row.left - cells[-1].left) < _FLUSH * row.size
    if len(row.cells) > 1 or not level or len(cells[-1].text) < _PROSE_CHARS:
        return False
    word = len(row.text.split(maxsplit=1)[0]) * (row.right - row.left) / len(row.text)
    return row.bottom - above.bottom < _TIGHT * row.size and above.right + word + 0.5 * row.size > right


def _pairs(rows: Sequence[Row]) -> int:
    """Return how many rows hold only labels with their values before the first row that does not; 0 if all rows do."""
    count = len(list(takewhile(lambda row: all(PAIR.match(cell.text) for cell in row.cells), rows)))
    return count if count < len(rows) else 0


def _attempts(rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of each stretch; cut a stretch that is not a table at its rows that are not cells."""
    for first, end in _stretches(rows):
        lone = [n for n in range(first, end) if not (rows[n].is_tabular or rows[n].has_marker)]
        if not lone or len(lone) > _MAX_PARTS or _table(rows[first:end]):
            yield first, end
            continue
        edges = [first - 1, *lone, end]
        yield from ((a + 1, b) for a, b in pairwise(edges) if b - a > 2)


def parted(rows: Sequence[Row], first: int, end: int, depth: int) -> list[tuple[int, int]]:
    """Return (first, end) of the parts of a stretch, cut at single lines between tables under each other whose columns
    differ."""
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
    """Return the number of borders between the columns of the rows."""
    return len(borders_of([row.cells for row in rows]))


def _is_head(row: Row, below: Sequence[Row]) -> bool:
    """Whether a row right above a table has a cell for nearly each column, however close together."""
    if below[0].top - row.bottom > 1.5 * row.size:
        return False
    placed = place(row.cells, borders_of([row.cells for row in below]))
    columns = 1 + _columns_of(below)
    return len(placed) >= max(2, columns - 1) and all(cell.first == cell.last for cell in placed)


def _table(
    rows: Sequence[Row], head_borders: Sequence[Border] = (), rules: Sequence[Bar] = (), *, is_sure: bool = False
) -> Table | None:
    """Return the rows as a table; None if they are not one. `is_sure`: these columns are known to be those of a
    table."""
    tabular = [row for row in rows if row.is_tabular]
    if len(rows) > _MAX_ROWS or len(tabular) < 2:
        return None
    if sum(has_leader(row.text) for row in rows) > 0.4 * len(rows):
        return None  # a list of contents
    lines = [cell for row in rows for cell in row.cells]
    borders = list(head_borders) or borders_of([row.cells for row in rows])
    if not borders or (len(tabular) < _MIN_ROWS and len(borders) < 2 and not is_sure):
        return None
    placed = [place(row.cells, borders) for row in rows]
    fewer = without_symbols(placed[1:], borders)
    if len(fewer) < len(borders):
        borders, placed = fewer, [place(row.cells, fewer) for row in rows]
    if not borders or not looks_tabular(placed, borders, lines):
        return None
    if not is_sure and not _is_convincing(placed, len(borders) + 1):
        return None
    bold = len(list(takewhile(lambda row: row.is_bold, rows[:3])))
    header = _rows_of_head(placed) or (bold if not head_borders and 1 <= bold < len(rows) else 1)
    left, top, right, _ = around([line.box for line in lines])
    foot = rows[header - 1].bottom
    partial = [
        bar
        for bar in rules
        if top < bar.at < foot and left < bar.start and bar.end - bar.start < _PARTIAL * (right - left)
    ]
    placed[:header] = heads.spanned(placed, header, len(borders) + 1, partial)
    return build(placed, len(borders) + 1, lines, header=header)


def _rows_of_head(placed: Sequence[Sequence[Placed]]) -> int:
    """Return how many rows precede the first row of numbers in a table of numbers; 0 if none or too many do."""

    def numbers(row: Sequence[Placed]) -> bool:
        texts = ["".join(line.text for line in cell.lines).strip() for cell in row if cell.first]
        numeric = [text for text in texts if is_number(text)]
        return 2 * len(numeric) >= len(texts) and not all(_YEAR.fullmatch(text) for text in numeric)

    are_numbers = [numbers(row) for row in placed]
    if 2 * sum(are_numbers) <= sum(len(row) > 1 for row in placed):
        return 0
    head = are_numbers.index(True)
    while head and len(placed[head - 1]) == 1 and placed[head - 1][0].first == 0:
        head -= 1  # A title of a group of rows.
    return head if head <= _MAX_HEAD else 0


def looks_tabular(placed: Sequence[Sequence[Placed]], borders: Sequence[Border], lines: Sequence[Line]) -> bool:
    """Whether these are cells, and neither columns of running text nor a list's markers and items."""
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
        if column == 0 and all(text in _PROMPTS for text in texts):
            return False
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
    numbers = sum(bool(NUMBER.fullmatch(text)) for text in texts)
    if numbers >= 0.4 * len(texts):
        return True
    starts = sorted(row[1].lines[0].left for row in placed if len(row) > 1)
    near = _FLUSH * placed[0][0].lines[0].size
    flush = sum(abs(x - starts[len(starts) // 2]) < near for x in starts) >= 0.7 * len(starts)
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
    """Build the table of these rows, the first `header` of which are its head; a row that continues the row above joins
    its cells. `lines`: all lines of the table, for its box and size.

    `separated`: for each row, whether a rule separates it from the row above; if given, it decides.
    """
    merged: list[list[Placed]] = []
    kept_header = header
    for index, row in enumerate(placed):
        if merged and _continues(placed, index, header, len(merged[-1]), separated):
            by_column = {cell.first: cell for cell in merged[-1]}
            for cell in row:
                above = by_column.get(cell.first)
                by_column[cell.first] = above._replace(lines=[*above.lines, *cell.lines]) if above else cell
            merged[-1] = [by_column[column] for column in sorted(by_column)]
            kept_header -= index < header
        else:
            merged.append(list(row))
    table_rows = [
        _cells(row if index < kept_header else _titled(row, columns), columns) for index, row in enumerate(merged)
    ]
    whole = box or around([line.box for line in lines])
    return Table(
        whole, tuple(tuple(row) for row in table_rows), max(1, min(kept_header, len(table_rows))), text_size(lines)
    )


def _titled(row: list[Placed], columns: int) -> list[Placed]:
    """Put the title of a group of rows, which runs across columns, into the first column."""
    return [row[0]._replace(last=0)] if len(row) == 1 and row[0].first == 0 < columns - 1 else row


def _continues(
    placed: Sequence[Sequence[Placed]], index: int, header: int, width: int, separated: Sequence[bool] | None
) -> bool:
    """Whether a row only continues the cells of the row above, which has `width` cells."""
    row, above = placed[index], placed[index - 1]
    if not row or not above or (separated is not None and separated[index]):
        return False
    size, pitch = row[0].lines[0].size, row[0].lines[0].bottom - above[0].lines[0].bottom
    if index < header:
        return pitch < _TIGHT_HEAD * size and _continues_head(row, above)
    spanning = any(cell.first != cell.last for cell in (*row, *above))
    last = len(row) == 1 and row[0].first == width - 1 > 0 and len(above[-1].lines[-1].text) > _PROSE_CHARS
    if spanning or (index == header and separated is None and not last):
        return False
    wrapped = len(row) == 1 and row[0].first > 0 and width > 2 and row[0].lines[0].text[:1].islower()
    if pitch >= (_LOOSE if wrapped else _TIGHT) * size:
        return False
    columns, filled = {cell.first for cell in row}, {cell.first for cell in above}
    if filled == {0} == {row[0].first} and width == 1 and not above[0].lines[0].text.endswith(":"):
        return row[0].lines[0].text[:1].islower()  # The last line of a long name holds the values.
    return columns <= filled and _goes_on(placed, index, width, separated)


def _continues_head(row: Sequence[Placed], above: Sequence[Placed]) -> bool:
    """Whether a row of a head only continues the cells of the row above it."""
    if any(cell.first != cell.last for cell in (*row, *above)):
        return [cell[:2] for cell in row] == [cell[:2] for cell in above]
    columns, filled = {cell.first for cell in row}, {cell.first for cell in above}
    nested = columns <= filled or filled <= columns or len(row) < len(above)
    return nested and not _has_own_stub(row, above)


def _goes_on(placed: Sequence[Sequence[Placed]], index: int, width: int, separated: Sequence[bool] | None) -> bool:
    """Whether the row's cells are the next lines of the `width` cells above."""
    row = placed[index]
    if any(NUMBER.fullmatch(line.text) for cell in row for line in cell.lines):
        return False
    if row[0].first == 0:
        return len(row) < width and row[0].lines[0].text[:1].islower() and _wraps(placed, index)
    are_parted = separated is not None and 2 * sum(separated) > len(separated)
    return are_parted or (2 * len(row) <= width and _wraps(placed, index))


def _has_own_stub(row: Sequence[Placed], above: Sequence[Placed]) -> bool:
    """Whether both rows of a head begin with a capitalised name in the first column."""
    return row[0].first == above[0].first == 0 and all(r[0].lines[0].text[:1].isupper() for r in (row, above))


def _wraps(placed: Sequence[Sequence[Placed]], index: int) -> bool:
    """Whether each cell above ended for lack of space: it is about as wide as any cell in its column."""
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
    cells: list[Cell] = []
    column = 0
    for cell in row:
        cells += [Cell()] * (cell.first - column)
        cells.append(Cell(cell_runs(cell.lines), columns=cell.last - cell.first + 1))
        column = cell.last + 1
    return cells + [Cell()] * (columns - column)

"""Table heads of several rows: a head above several columns spans them."""

import math
from collections.abc import Sequence

from pipeline.reading.layout.borders import Placed
from pipeline.reading.layout.cells import spans_of, sub_line
from pipeline.reading.layout.drawn_rules import Bar
from pipeline.reading.layout.model import Span

_CENTRED = 1.0  # text sizes between the middle of a head and that of its columns
_NEARLY = 0.5
_ALIGNED = 0.6  # of a letter's width
_MAX_SEARCH = 12  # columns to each side

_Extent = tuple[float, float]


def spanned(rows: Sequence[Sequence[Placed]], head: int, columns: int, rules: Sequence[Bar]) -> list[list[Placed]]:
    """Return the first `head` rows, with wider cells: a cell over a rule spans the columns below the rule; a cell
    centred above several columns with heads of their own spans those."""
    extents = _extents(rows, columns)
    result = [[part for cell in row for part in _words_apart(cell, extents)] for row in rows[:head]]
    for index in reversed(range(min(head, len(rows) - 1))):
        row, below = result[index], result[index + 1] if index + 1 < head else rows[index + 1]
        if not row or not below:
            continue
        row = _over_rules(row, [bar for bar in rules if _middle(row) < bar.at < _middle(below)], extents)
        result[index] = _over_columns(row, below, extents) if index + 1 < head else row
    return result


def _words_apart(cell: Placed, extents: Sequence[_Extent | None]) -> list[Placed]:
    """Return the cell, or each of its words in a column of its own if it has a word above each column."""
    words = spans_of(cell.lines[0]) if len(cell.lines) == 1 and cell.first < cell.last else ()
    own = extents[cell.first : cell.last + 1]
    if len(words) != len(own) or not all(map(_is_above, words, own)):
        return [cell]
    columns = range(cell.first, cell.last + 1)
    return [
        Placed(column, column, [sub_line(cell.lines[0], [word])]) for column, word in zip(columns, words, strict=True)
    ]


def _is_above(word: Span, extent: _Extent | None) -> bool:
    """Whether the word is level with the column's left or right edge, or above its middle."""
    if extent is None:
        return False
    left, right = word.left - extent[0], word.right - extent[1]
    return min(abs(left), abs(right), abs(left + right) / 2) < _ALIGNED * (word.right - word.left) / len(word.text)


def reaches(row: Sequence[Placed], below: Sequence[Sequence[Placed]], columns: int) -> bool:
    """Whether a cell of the row is centred above several columns, each with a cell right below it, as in a table's
    head."""
    if not row or not below:
        return False
    wide = _over_columns(list(row), below[0], _extents(below, columns))
    return any(cell.last > cell.first for cell in wide)


def _extents(rows: Sequence[Sequence[Placed]], columns: int) -> list[_Extent | None]:
    """Return the extent of each column's cells; None for a column without cells of its own."""
    lows: dict[int, float] = {}
    highs: dict[int, float] = {}
    for row in rows:
        for cell in row:
            if cell.first == cell.last:
                low, high = _extent(cell)
                lows[cell.first] = min(low, lows.get(cell.first, low))
                highs[cell.first] = max(high, highs.get(cell.first, high))
    return [(lows[column], highs[column]) if column in lows else None for column in range(columns)]


def _over_rules(row: list[Placed], under: Sequence[Bar], extents: Sequence[_Extent | None]) -> list[Placed]:
    for bar in under:
        middles = [(number, (extent[0] + extent[1]) / 2) for number, extent in enumerate(extents) if extent]
        columns = [number for number, middle in middles if bar.start <= middle <= bar.end]
        held = [cell for cell in row if bar.start <= sum(_extent(cell)) / 2 <= bar.end]
        if not columns or len(held) != 1:
            continue
        first, last = min(columns), max(columns)
        others = [cell for cell in row if cell is not held[0]]
        if not any(cell.first <= last and first <= cell.last for cell in others):
            row = sorted([*others, held[0]._replace(first=first, last=last)], key=lambda cell: cell.first)
    return row


def _over_columns(row: list[Placed], below: Sequence[Placed], extents: Sequence[_Extent | None]) -> list[Placed]:
    """Widen the row's cells to the columns above which they are centred."""
    result = list(row)
    for place, cell in enumerate(result):
        # Beside other cells, a cell above the first column does not widen into it.
        least = result[place - 1].last + 1 if place else int(len(result) > 1)
        most = result[place + 1].first - 1 if place + 1 < len(result) else len(extents) - 1
        result[place] = _widened(
            cell, [other for other in below if least <= other.first and other.last <= most], extents
        )
    return result


def _widened(cell: Placed, below: Sequence[Placed], extents: Sequence[_Extent | None]) -> Placed:
    """Widen the cell over the most neighbouring cells of the row below that it is centred above."""
    middle, size = sum(_extent(cell)) / 2, cell.lines[0].size

    def off(first: int, last: int) -> float:
        low, high = extents[first], extents[last]
        return abs((low[0] + high[1]) / 2 - middle) if low and high else math.inf

    if cell.first == cell.last and off(cell.first, cell.last) <= _NEARLY * size:
        return cell
    near = [other for other in below if abs(other.first - cell.first) <= _MAX_SEARCH]
    candidates: list[tuple[float, int, int]] = []
    for start in range(len(near)):
        for end in range(start + 1, len(near)):
            if near[end].first != near[end - 1].last + 1:
                break
            first, last = near[start].first, near[end].last
            if first <= cell.first and cell.last <= last and off(first, last) < _CENTRED * size:
                candidates.append((max(off(first, last), _NEARLY * size), first - last, first))
    if not candidates:
        return cell
    _, width, first = min(candidates)
    return cell._replace(first=first, last=first - width)


def _extent(cell: Placed) -> _Extent:
    return min(line.left for line in cell.lines), max(line.right for line in cell.lines)


def _middle(row: Sequence[Placed]) -> float:
    lines = [line for cell in row for line in cell.lines]
    return (min(line.top for line in lines) + max(line.bottom for line in lines)) / 2

"""Heads of several rows: what stands above several columns spans them."""

import math
from collections.abc import Sequence

from pipeline.reading.layout.borders import Placed
from pipeline.reading.layout.drawn_rules import Bar

_CENTRED = 1.0  # text sizes between the middle of a head and that of its columns
_NEARLY = 0.5
_MAX_SEARCH = 12  # columns to each side

_Extent = tuple[float, float]


def spanned(rows: Sequence[Sequence[Placed]], head: int, columns: int, rules: Sequence[Bar]) -> list[list[Placed]]:
    """The first `head` rows, in which a cell over a rule spans the columns below it, and one in the middle above
    several columns with heads of their own spans those."""
    extents = _extents(rows, columns)
    found = [list(row) for row in rows[:head]]
    for index in reversed(range(min(head, len(rows) - 1))):
        row, below = found[index], found[index + 1] if index + 1 < head else rows[index + 1]
        if not row or not below:
            continue
        row = _over_rules(row, [bar for bar in rules if _middle(row) < bar.at < _middle(below)], extents)
        found[index] = _over_columns(row, below, extents) if index + 1 < head else row
    return found


def reaches(row: Sequence[Placed], below: Sequence[Sequence[Placed]], columns: int) -> bool:
    """Whether the row has a head that is centred above several columns, each with a cell right below it."""
    if not row or not below:
        return False
    wide = _over_columns(list(row), below[0], _extents(below, columns))
    return any(cell.last > cell.first for cell in wide)


def _extents(rows: Sequence[Sequence[Placed]], columns: int) -> list[_Extent | None]:
    """From where to where the cells of each column reach."""
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
    """The row, its cells widened to the columns they are centred above."""
    found = list(row)
    for place, cell in enumerate(found):
        # Among others, what stands above the first column is its own.
        least = found[place - 1].last + 1 if place else int(len(found) > 1)
        most = found[place + 1].first - 1 if place + 1 < len(found) else len(extents) - 1
        found[place] = _widened(
            cell, [other for other in below if least <= other.first and other.last <= most], extents
        )
    return found


def _widened(cell: Placed, below: Sequence[Placed], extents: Sequence[_Extent | None]) -> Placed:
    """The cell over neighbouring ones of the row below, the most that it is in the middle of."""
    middle, size = sum(_extent(cell)) / 2, cell.lines[0].size

    def off(first: int, last: int) -> float:
        low, high = extents[first], extents[last]
        return abs((low[0] + high[1]) / 2 - middle) if low and high else math.inf

    if cell.first == cell.last and off(cell.first, cell.last) <= _NEARLY * size:
        return cell
    near = [other for other in below if abs(other.first - cell.first) <= _MAX_SEARCH]
    found: list[tuple[float, int, int]] = []
    for start in range(len(near)):
        for end in range(start + 1, len(near)):
            if near[end].first != near[end - 1].last + 1:
                break
            first, last = near[start].first, near[end].last
            if first <= cell.first and cell.last <= last and off(first, last) < _CENTRED * size:
                found.append((max(off(first, last), _NEARLY * size), first - last, first))
    if not found:
        return cell
    _, width, first = min(found)
    return cell._replace(first=first, last=first - width)


def _extent(cell: Placed) -> _Extent:
    return min(line.left for line in cell.lines), max(line.right for line in cell.lines)


def _middle(row: Sequence[Placed]) -> float:
    lines = [line for cell in row for line in cell.lines]
    return (min(line.top for line in lines) + max(line.bottom for line in lines)) / 2

"""Tables as a grid: which place each cell has, where cells span rows and columns.

Tables come from models too, so nothing they claim about themselves is believed: spans end where the table ends.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

MAX_PLACES = 100_000
"""The largest grid, in places; what does not fit is cut off. Clients refuse tables much larger than this."""

_MAX_COLUMNS = 1000


class Placed(NamedTuple):
    """A cell with the place where it begins, and how many places it covers."""

    text: str
    row: int
    column: int
    rows: int
    columns: int
    header: bool


class Grid(NamedTuple):
    """The cells of a table from left to right and from top to bottom; every cell ends inside the table."""

    cells: list[Placed]
    rows: int
    columns: int

    @property
    def size(self) -> int:
        """How many places there are."""
        return self.rows * self.columns

    def places(self) -> list[list[Placed]]:
        """The cell of each place; an empty one where the table has none."""
        found = [
            [Placed("", row, column, 1, 1, header=False) for column in range(self.columns)] for row in range(self.rows)
        ]
        for cell in self.cells:
            for row in range(cell.row, cell.row + cell.rows):
                found[row][cell.column : cell.column + cell.columns] = [cell] * cell.columns
        return found


def grid(rows: Sequence[Sequence[dict[str, Any]]], header: int) -> Grid:
    """The grid of rows of cells, each `{text, rows, columns}` and in the row where it begins."""
    taken: set[tuple[int, int]] = set()
    cells: list[Placed] = []
    width = 0
    for number, row in enumerate(rows):
        if (number + 1) * max(width, 1) > MAX_PLACES:
            rows = rows[:number]
            break
        column = 0
        for cell in row:
            while (number, column) in taken:
                column += 1
            places = MAX_PLACES - len(taken)
            columns = max(1, min(int(cell["columns"]), _MAX_COLUMNS - column))
            if column >= _MAX_COLUMNS or columns > places:
                break
            spanned = max(1, min(int(cell["rows"]), len(rows) - number, places // columns))
            area = {(number + down, column + right) for down in range(spanned) for right in range(columns)}
            if area & taken:  # it would cover a cell that reaches down from above
                columns, spanned, area = 1, 1, {(number, column)}
            taken |= area
            cells.append(Placed(str(cell["text"]), number, column, spanned, columns, number < header))
            column += columns
            width = max(width, column)
    height = len(rows)
    kept = [cell._replace(rows=min(cell.rows, height - cell.row)) for cell in cells if cell.row < height]
    return Grid(kept, height, max((cell.column + cell.columns for cell in kept), default=0))

"""Tables as grids: the place of each cell, where cells span rows and columns.

Models make tables too, so the sizes that a table claims are not trusted: spans end where the table ends.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

MAX_PLACES = 100_000
"""The largest grid, in places; further cells are cut off. Clients refuse tables much larger than this."""

_MAX_COLUMNS = 1000


class Placed(NamedTuple):
    """A cell, the place where it begins, and the rows and columns that it covers."""

    text: str
    row: int
    column: int
    rows: int
    columns: int
    header: bool


class Grid(NamedTuple):
    """The cells of a table, row by row; every cell ends inside the table."""

    cells: list[Placed]
    rows: int
    columns: int

    @property
    def size(self) -> int:
        """The number of places: rows times columns."""
        return self.rows * self.columns

    def places(self) -> list[list[Placed]]:
        """Return, by row and column, the cell at each place: a spanning cell several times, an empty cell where the
        table has none."""
        result = [
            [Placed("", row, column, 1, 1, header=False) for column in range(self.columns)] for row in range(self.rows)
        ]
        for cell in self.cells:
            for row in range(cell.row, cell.row + cell.rows):
                result[row][cell.column : cell.column + cell.columns] = [cell] * cell.columns
        return result


def grid(rows: Sequence[Sequence[dict[str, Any]]], header: int) -> Grid:
    """Return the grid of rows of cells `{text, rows, columns}`, each listed in the row where it begins; the first
    `header` rows are the head. Spans end at the table's edge, at other cells and at `MAX_PLACES`."""
    occupied: set[tuple[int, int]] = set()
    cells: list[Placed] = []
    width = 0
    for number, row in enumerate(rows):
        if (number + 1) * max(width, 1) > MAX_PLACES:
            rows = rows[:number]
            break
        column = 0
        for cell in row:
            while (number, column) in occupied:
                column += 1
            places = MAX_PLACES - len(occupied)
            columns = max(1, min(int(cell["columns"]), _MAX_COLUMNS - column))
            if column >= _MAX_COLUMNS or columns > places:
                break
            spanned = max(1, min(int(cell["rows"]), len(rows) - number, places // columns))
            # Would the cell cover another? Such a cell reaches down from above, so it stands in this row.
            if any((number, column + right) in occupied for right in range(columns)):
                columns, spanned = 1, 1
            occupied.update((number + down, column + right) for down in range(spanned) for right in range(columns))
            cells.append(Placed(str(cell["text"]), number, column, spanned, columns, number < header))
            column += columns
            width = max(width, column)
    height = len(rows)
    kept = [cell._replace(rows=min(cell.rows, height - cell.row)) for cell in cells if cell.row < height]
    return Grid(kept, height, max((cell.column + cell.columns for cell in kept), default=0))

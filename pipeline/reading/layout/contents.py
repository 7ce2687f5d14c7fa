"""Lists of contents in columns too short to be seen by the empty space between them."""

from collections.abc import Sequence
from itertools import groupby

from pipeline.reading.layout.rows import Row
from pipeline.reading.layout.text import has_leader


def in_columns(found: Sequence[Row]) -> list[Row]:
    """The rows; where each piece of neighbouring ones is a title with dots to its page, column after column."""
    if not any(row.is_tabular and _is_contents(row) for row in found):
        return list(found)
    ordered: list[Row] = []
    for (contents, _), stretch in groupby(found, key=lambda row: (_is_contents(row), len(row.cells))):
        rows = list(stretch)
        if contents and len(rows) > 1:
            columns = zip(*(row.cells for row in rows), strict=True)
            ordered += [Row((cell,)) for column in columns for cell in column]
        else:
            ordered += rows
    return ordered


def _is_contents(row: Row) -> bool:
    return all(has_leader(cell.text) for cell in row.cells)

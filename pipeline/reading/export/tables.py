"""Write the tables of a page as CSV."""

import csv
import re
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

from pipeline.reading.export import docling
from pipeline.reading.export.grid import grid

_FORMULA = re.compile(r"[=@\t\r]|[+-](?![0-9.,]+\s?%?$)")
"""What a spreadsheet takes for a formula; numbers with a sign stay numbers."""


def as_csv(page: Mapping[str, Any]) -> Iterator[str]:
    """Yield each table of a page, which has the shape of `rules.result.layout_json`, as CSV.

    A cell that spans several places gives its text at the first; the others are empty. A text that a spreadsheet would
    take for a formula begins with an apostrophe.
    """
    for block in docling.page_blocks(page):
        if block["type"] != "table":
            continue
        buffer = StringIO()
        writer = csv.writer(buffer)
        for number, row in enumerate(grid(block["rows"], block["header"]).places()):
            writer.writerow(
                _safe(cell.text) if (cell.row, cell.column) == (number, place) else "" for place, cell in enumerate(row)
            )
        yield buffer.getvalue()


def _safe(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) else text

"""Tables as CSV."""

import csv
from io import StringIO
from typing import Any

from pipeline.reading.export.tables import as_csv


def page(*rows: list[tuple[str, int, int]]) -> dict[str, Any]:
    cells = [[{"text": text, "rows": down, "columns": across} for text, down, across in row] for row in rows]
    text = {"type": "paragraph", "text": "Between", "bbox": None}
    table = {"type": "table", "text": "", "bbox": None, "header": 1, "rows": cells}
    return {"page": 1, "blocks": [text, table, text, {"type": "markdown", "bbox": None, "text": "| a |\n| - |\n| b |"}]}


def test_a_spanning_cell_gives_its_text_once() -> None:
    first, second = as_csv(page([("Year", 2, 1), ("Sales", 1, 2)], [("a, b", 1, 1), ('"c"', 1, 1)]))
    assert list(csv.reader(StringIO(first))) == [["Year", "Sales", ""], ["", "a, b", '"c"']]
    assert list(csv.reader(StringIO(second))) == [["a"], ["b"]]


def test_no_cell_is_a_formula_for_a_spreadsheet() -> None:
    texts = ["=1+1", "@SUM(A1)", "+A1", "-cmd|x", "\tx", "-5", "+4.5 %", "-1,200.00", "a=b", ""]
    (table, _) = as_csv(page([(text, 1, 1) for text in texts]))
    (row,) = csv.reader(StringIO(table))
    assert row == ["'=1+1", "'@SUM(A1)", "'+A1", "'-cmd|x", "'\tx", "-5", "+4.5 %", "-1,200.00", "a=b", ""]

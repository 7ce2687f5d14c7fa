"""The corpus' own expectations as assertions: zerox's keywords of each page, markitdown's expected Markdown.

The latter is markitdown's own output for those two documents, so markitdown always passes that group.
"""

import json
from pathlib import Path

from benchmarks.assertions import WHOLE_DOCUMENT, Assertion, Present, Table
from benchmarks.reading import Cell, Reading, plain

KEYWORDS = "keywords"
EXPECTED = "expected"

MISPRINTS = {"throught": "through", "$11.631.26": "$11,631.26", "Bmark%": "Bmark (%)", "25% - 35%": "25%-35%"}
"""Keywords that do not occur on their page, with the text that the rendered page shows instead."""

SIDE_BY_SIDE = {"Year", "Make", "Model", "Trim", "VIN", "Color", "Odometer", "Estimator"}
"""Labels that begin a second table on the right. The cell on their left belongs to the first table."""

TITLES = {"Customer Information", "Vehicle Information", "Customer Information Vehicle Information"}
"""Titles of two boxes side by side: headings rather than cells, which form one line only in the text layer."""


def load(corpus: Path) -> list[Assertion]:
    folder = corpus / "documents"
    keywords = folder / "zerox-keywords.json"
    assertions: list[Assertion] = _keywords(keywords) if keywords.is_file() else []
    for path in sorted(folder.glob("*.expected.md")):
        assertions += _expected(
            path.read_text("utf-8"), f"documents/{path.name.replace('.expected.md', '.pdf')}", path.name
        )
    return assertions


def _keywords(path: Path) -> list[Assertion]:
    return [
        Present(
            pdf=f"documents/{item['file']}",
            page=number,
            text=MISPRINTS.get(keyword, keyword),
            ignore_case=True,
            group=KEYWORDS,
            source=path.name,
        )
        for item in json.loads(path.read_text("utf-8"))
        for number, page in enumerate(item["expectedKeywords"], 1)
        for keyword in dict.fromkeys(page)
    ]


def _expected(markdown: str, pdf: str, source: str) -> list[Assertion]:
    """Expect each line of text, and each cell with its left neighbour, in the whole document: the file has no pages."""
    lines = (line for line in markdown.splitlines() if line.strip() and not line.startswith("|"))
    assertions: dict[Assertion, None] = {}
    for line in lines:
        if line not in TITLES:
            assertions[Present(pdf=pdf, page=WHOLE_DOCUMENT, text=line, group=EXPECTED, source=source)] = None
    rows = [row for grid in Reading(markdown).tables for row in grid]
    for cell, left in (pair for row in rows for pair in _pairs(row)):
        if cell in TITLES:
            continue
        assertions[Table(pdf=pdf, page=WHOLE_DOCUMENT, cell=cell, left=left, group=EXPECTED, source=source)] = None
    return list(assertions)


def _pairs(row: list[Cell]) -> list[tuple[str, str]]:
    """Pair each cell with text with its left neighbour or an empty text."""
    texts = [plain(cell.text) for cell in row if cell.text]
    return [(text, "" if text in SIDE_BY_SIDE else left) for text, left in zip(texts, ["", *texts[:-1]], strict=True)]

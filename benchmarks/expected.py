"""What the corpus itself expects, as assertions: zerox's keywords of each page, markitdown's expected Markdown.

The latter is what markitdown makes of those two documents: it is bound to pass that group.
"""

import json
from pathlib import Path

from benchmarks.assertions import WHOLE_DOCUMENT, Assertion, Present, Table
from benchmarks.reading import Cell, Reading, plain

KEYWORDS = "keywords"
EXPECTED = "expected"

MISPRINTS = {"throught": "through", "$11.631.26": "$11,631.26", "Bmark%": "Bmark (%)", "25% - 35%": "25%-35%"}
"""Keywords that are not on their page, with what a look at the page shows instead."""

SIDE_BY_SIDE = {"Year", "Make", "Model", "Trim", "VIN", "Color", "Odometer", "Estimator"}
"""Labels that begin a second table on the right: what is left of them there is no matter of theirs."""

TITLES = {"Customer Information", "Vehicle Information", "Customer Information Vehicle Information"}
"""Titles of two boxes side by side: rather headings than cells, and one line only in the text layer."""


def load(corpus: Path) -> list[Assertion]:
    folder = corpus / "documents"
    keywords = folder / "zerox-keywords.json"
    found: list[Assertion] = _keywords(keywords) if keywords.is_file() else []
    for path in sorted(folder.glob("*.expected.md")):
        found += _expected(path.read_text("utf-8"), f"documents/{path.name.replace('.expected.md', '.pdf')}", path.name)
    return found


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
    """Every line of text, and every cell of a table with the next one on its left: pages are not told apart there."""
    lines = (line for line in markdown.splitlines() if line.strip() and not line.startswith("|"))
    found: dict[Assertion, None] = {}
    for line in lines:
        if line not in TITLES:
            found[Present(pdf=pdf, page=WHOLE_DOCUMENT, text=line, group=EXPECTED, source=source)] = None
    rows = [row for grid in Reading(markdown).tables for row in grid]
    for cell, left in (pair for row in rows for pair in _pairs(row)):
        if cell in TITLES:
            continue
        found[Table(pdf=pdf, page=WHOLE_DOCUMENT, cell=cell, left=left, group=EXPECTED, source=source)] = None
    return list(found)


def _pairs(row: list[Cell]) -> list[tuple[str, str]]:
    """(cell, the next on its left or nothing) of the cells with text."""
    texts = [plain(cell.text) for cell in row if cell.text]
    return [(text, "" if text in SIDE_BY_SIDE else left) for text, left in zip(texts, ["", *texts[:-1]], strict=True)]

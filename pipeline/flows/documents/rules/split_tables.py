"""Tables split by a page break, joined again when the pages are merged.

Works on the pages' Markdown, whoever wrote it. A repeated header proves that the table continues. Without one, both
parts must stand where the parts of a split table stand: low on the first page, high on the second, equally wide.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SEPARATOR = re.compile(r"\|(?:\s*:?-+:?\s*\|)+")
_CELLS = re.compile(r"(?<!\\)\|")
_CELL = re.compile(r"<t[hd]\b[^<>]*>")
_SPAN = re.compile(r"\scolspan=\"?(\d{1,4})\b")
_SAME_SIDE = 0.02  # of the page's width: how far the sides of the two parts may differ
_LOW, _HIGH = 0.6, 0.35  # of the page's height: the first part ends below _LOW, the second begins above _HIGH

Layout = Mapping[str, Any]


def join_tables(texts: Sequence[str], layouts: Sequence[Layout | None]) -> list[str]:
    """The texts of consecutive pages, each split table moved as a whole to the page where it begins."""
    joined = list(texts)
    begins = 0
    for page in range(1, len(joined)):
        parts = _join(joined[begins], joined[page], _continues(layouts[page - 1], layouts[page]))
        if parts is not None:
            joined[begins], joined[page] = parts
        if parts is None or joined[page].strip():
            begins = page
    return joined


def _join(first: str, second: str, continues: bool) -> tuple[str, str] | None:
    """The first text with the whole table, and the second without its part; None if there is nothing to join."""
    before, _, above = first.rstrip().rpartition("\n\n")
    below, _, after = second.lstrip("\n").partition("\n\n")
    table = None
    if above.startswith("|") and below.startswith("|"):
        table = _join_pipes(above.split("\n"), below.split("\n"), continues)
    elif above.startswith("<table>") and below.startswith("<table>"):
        table = _join_html(above, below, continues)
    if table is None:
        return None
    return (f"{before}\n\n{table}" if before else table), after


def _join_pipes(above: list[str], below: list[str], continues: bool) -> str | None:
    for lines in (above, below):
        if len(lines) < 2 or not _SEPARATOR.fullmatch(lines[1].strip()):
            return None
    if len(_CELLS.findall(above[0])) != len(_CELLS.findall(below[0])):
        return None
    if _plain(above[0]) == _plain(below[0]):
        return "\n".join(above + below[2:])
    return "\n".join([*above, below[0], *below[2:]]) if continues else None


def _join_html(above: str, below: str, continues: bool) -> str | None:
    first, second = list(_rows(above)), list(_rows(below))
    if not first or not second or _columns(first[0]) != _columns(second[0]):
        return None
    header = [row for row in first if "<th" in row]
    repeated = bool(header) and [_plain(row) for row in second[: len(header)]] == [_plain(row) for row in header]
    if not repeated and not continues:
        return None
    rows = (
        second[len(header) :] if repeated else [row.replace("<th", "<td").replace("</th>", "</td>") for row in second]
    )
    return "\n".join(["<table>", *first, *rows, "</table>"])


def _rows(table: str) -> Iterator[str]:
    begin = table.find("<tr>")
    while begin >= 0 and (end := table.find("</tr>", begin)) >= 0:
        yield table[begin : end + len("</tr>")]
        begin = table.find("<tr>", end)


def _columns(row: str) -> int:
    spans = (_SPAN.search(cell) for cell in _CELL.findall(row))
    return sum(int(span[1]) if span else 1 for span in spans)


def _plain(row: str) -> str:
    return " ".join(re.sub(r"[*_`\\]", "", row).casefold().split())


def _continues(first: Layout | None, second: Layout | None) -> bool:
    """Whether the table that ends the first page and the one that begins the second stand as parts of one would."""
    if not (first and second and first["blocks"] and second["blocks"]):
        return False
    above, below = first["blocks"][-1], second["blocks"][0]
    if above["type"] != "table" or below["type"] != "table":
        return False
    (left, _, right, bottom), (next_left, top, next_right, _) = above["bbox"], below["bbox"]
    near = _SAME_SIDE * first["width"]
    aligned = abs(left - next_left) <= near and abs(right - next_right) <= near
    return bool(aligned and bottom >= _LOW * first["height"] and top <= _HIGH * second["height"])

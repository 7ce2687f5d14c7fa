"""Joins tables that a page break split, when the pages are merged.

Works on Markdown from any converter. A repeated header proves that the table continues. Without one, both
parts must stand where the parts of a split table stand: low on the first page, high on the second, equally wide.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SEPARATOR = re.compile(r"\|(?:\s*:?-+:?\s*\|)+")
_CELLS = re.compile(r"(?<!\\)\|")
_CELL = re.compile(r"<t[hd]\b[^<>]*>")
_SPAN = re.compile(r"\scolspan=\"?(\d{1,4})\b")
_SAME_SIDE = 0.02  # of the page's width: how far the sides of the two parts may differ
_LOW, _HIGH = 0.6, 0.35  # of the page's height: the first part ends below _LOW, the second begins above _HIGH

Layout = Mapping[str, Any]


def join_tables(texts: Sequence[str], layouts: Sequence[Layout | None]) -> list[str]:
    """Return the texts of consecutive pages, with each split table moved to the page where it begins. `layouts`: one
    for each page."""
    joined = list(texts)
    begins, table = 0, None
    for page in range(1, len(joined)):
        table = table or _Table.at_end_of(joined[begins])
        after = table.grown_by(joined[page], _continues(layouts[page - 1], layouts[page])) if table else None
        if after is not None:
            joined[page] = after
        if after is None or after.strip():
            if table is not None:
                joined[begins] = table.text
            begins, table = page, None
    if table is not None:
        joined[begins] = table.text
    return joined


@dataclass
class _Table:
    """The table that ends a page, parsed once however many pages it spans.

    `rows`: the lines of a Markdown table, or the rows of an HTML table. `heads`: its header rows."""

    page: str
    before: str
    rows: list[str]
    heads: list[str]
    is_html: bool
    is_joined: bool = False

    @classmethod
    def at_end_of(cls, page: str) -> "_Table | None":
        before, _, last = page.rstrip().rpartition("\n\n")
        if last.startswith("|") and _is_table(lines := last.split("\n")):
            return cls(page, before, lines, [_plain(lines[0])], is_html=False)
        if last.startswith("<table>") and (rows := list(_rows(last))):
            return cls(page, before, rows, [_plain(row) for row in rows if "<th" in row], is_html=True)
        return None

    def grown_by(self, page: str, continues: bool) -> str | None:
        """If the table that begins `page` continues this one, append its rows, and return the text of `page` behind
        them; else None.

        A repeated header proves it; without one, the number of columns and `continues`, the positions, decide.
        """
        first, _, after = page.lstrip("\n").partition("\n\n")
        added = None
        if self.is_html and first.startswith("<table>"):
            added = self._added_rows(list(_rows(first)), continues)
        elif not self.is_html and first.startswith("|"):
            added = self._added_lines(first.split("\n"), continues)
        if added is None:
            return None
        while not self.rows[-1].strip():
            self.rows.pop()
        self.rows += added
        self.is_joined = True
        return after

    def _added_lines(self, lines: list[str], continues: bool) -> list[str] | None:
        if not _is_table(lines) or len(_CELLS.findall(self.rows[0])) != len(_CELLS.findall(lines[0])):
            return None
        if self.heads == [_plain(lines[0])]:
            return lines[2:]
        return [lines[0], *lines[2:]] if continues else None

    def _added_rows(self, rows: list[str], continues: bool) -> list[str] | None:
        if not rows or _columns(self.rows[0]) != _columns(rows[0]):
            return None
        count = len(self.heads)
        if count and [_plain(row) for row in rows[:count]] == self.heads:
            self.heads += [_plain(row) for row in rows[count:] if "<th" in row]
            return rows[count:]
        return [row.replace("<th", "<td").replace("</th>", "</td>") for row in rows] if continues else None

    @property
    def text(self) -> str:
        """Return the page with the rows added to its table."""
        if not self.is_joined:
            return self.page
        table = "\n".join(["<table>", *self.rows, "</table>"] if self.is_html else self.rows)
        return f"{self.before}\n\n{table}" if self.before else table


def _is_table(lines: Sequence[str]) -> bool:
    return len(lines) >= 2 and _SEPARATOR.fullmatch(lines[1].strip()) is not None


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
    """Whether the first page's last block and the second page's first block are tables whose positions fit two parts of
    one table."""
    if not (first and second):
        return False
    shown = [[block for block in page["blocks"] if block["type"] != "furniture"] for page in (first, second)]
    if not all(shown):
        return False
    above, below = shown[0][-1], shown[1][0]
    if above["type"] != "table" or below["type"] != "table":
        return False
    (left, _, right, bottom), (next_left, top, next_right, _) = above["bbox"], below["bbox"]
    near = _SAME_SIDE * first["width"]
    aligned = abs(left - next_left) <= near and abs(right - next_right) <= near
    return bool(aligned and bottom >= _LOW * first["height"] and top <= _HIGH * second["height"])

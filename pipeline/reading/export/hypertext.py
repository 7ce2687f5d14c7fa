"""Turn the HTML in a page's Markdown into blocks: tables, and other text as paragraphs.

A model wrote it, so any tag may be missing. Python's `html.parser` takes hours over a megabyte of `<!--`: it searches
for the missing end again from each mark. This parser reads each character only a few times.
"""

import re
from collections.abc import Iterator, Sequence
from html import unescape as _unescape
from typing import Any, NamedTuple

Json = dict[str, Any]

TAG = re.compile(r"""<(?P<end>/?)(?P<name>[a-zA-Z][^\s/<>]*+)(?P<attributes>(?:[^<>"']|"[^"<]*"|'[^'<]*')*+)>""")
_SPAN = re.compile(r"""(?<![^\s"'])(rowspan|colspan)\s*+=\s*+["']?\s*+([0-9]{1,8})(?![0-9])""", re.IGNORECASE)
_HUGE_REFERENCE = re.compile(r"&#[0-9]{9,}+;?")
"""A number that no character has; Python refuses to convert very long ones."""
_SILENT = frozenset({"script", "style", "template"})
_INLINE = frozenset({"a", "b", "em", "i", "small", "span", "strong", "sub", "sup", "u", "img", "code"})


class Tag(NamedTuple):
    """A tag of HTML: its name in lower case, whether it ends an element, and its attributes as written."""

    name: str
    closing: bool
    attributes: str


def unescape(text: str) -> str:
    """Return text with characters for HTML's references to them. Unlike Python's function, never raises."""
    return _unescape(_HUGE_REFERENCE.sub("\ufffd", text))


def new_block(kind: str, text: str, **more: Any) -> Json:
    """Return a block, ready for JSON, without a box."""
    return {"type": kind, "text": text, "bbox": None, **more}


def table(rows: Sequence[Sequence[Json]], header: int) -> Json:
    """Return a block of type table, whose first `header` rows are the head; its text has tabs between cells."""
    text = "\n".join("\t".join(cell["text"] for cell in row) for row in rows)
    return new_block("table", text, header=header, rows=[list(row) for row in rows])


def blocks(html: str) -> list[Json]:
    """Return the tables of some HTML, and its other text as paragraphs, as dicts in the order of the HTML; without
    comments, scripts and styles."""
    reader = _Reader()
    for part in parts(html):
        if isinstance(part, str):
            reader.text(part)
        elif part.closing:
            reader.end(part.name)
        else:
            reader.begin(part)
    return reader.close()


def parts(html: str) -> Iterator[str | Tag]:
    """Yield texts and tags in order. A tag or comment without an end is text."""
    lowered = ""
    last, last_comment = html.rfind(">"), html.rfind("-->")
    at = 0
    while (begin := html.find("<", at)) >= 0:
        yield unescape(html[at:begin])
        match = TAG.match(html, begin) if begin < last else None
        if match is not None:
            name, at = match["name"].lower(), match.end()
            yield Tag(name, bool(match["end"]), match["attributes"])
            if name in _SILENT and not match["end"]:
                lowered = lowered or html.lower()
                end = lowered.find(f"</{name}", at)
                at = end if end >= 0 else len(html)
        elif html.startswith("<!--", begin) and begin < last_comment:
            at = html.index("-->", begin) + len("-->")
        elif html.startswith(("<!", "<?"), begin) and begin < last:
            at = html.index(">", begin) + 1
        else:
            yield "<"
            at = begin + 1
    yield unescape(html[at:])


class _Reader:
    """Builds blocks from the parts of some HTML."""

    def __init__(self) -> None:
        self._blocks: list[Json] = []
        self._text: list[str] = []
        self._rows: list[list[Json]] | None = None
        self._cell: Json | None = None
        self._nested = 0
        self._in_head = False
        self._header = 0

    def text(self, text: str) -> None:
        self._text.append(text)

    def begin(self, tag: Tag) -> None:
        name = tag.name
        if name == "table":
            self._nested += 1
            if self._nested == 1:
                self._end_paragraph()
                self._rows, self._header, self._in_head = [], 0, False
        elif self._rows is None or self._nested > 1:
            if name not in _INLINE:
                self._break()
        elif name == "thead":
            self._in_head = True
        elif name == "tr":
            self._end_cell()
            self._rows.append([])
        elif name in {"td", "th"}:
            self._begin_cell(tag)
        elif name not in _INLINE:
            self._text.append(" ")

    def end(self, name: str) -> None:
        if name == "table" and self._nested:
            self._nested -= 1
            if not self._nested:
                self._end_table()
        elif name == "thead":
            self._in_head = False
        elif self._rows is None and name not in _INLINE:
            self._break()

    def close(self) -> list[Json]:
        """End any open table and paragraph, and return all blocks."""
        if self._rows is not None:
            self._end_table()
        self._end_paragraph()
        return self._blocks

    def _end_paragraph(self) -> None:
        text = " ".join("".join(self._text).split())
        self._text = []
        if text:
            self._blocks.append(new_block("paragraph", text))

    def _break(self) -> None:
        if self._rows is None:
            self._end_paragraph()
        else:
            self._text.append(" ")

    def _begin_cell(self, tag: Tag) -> None:
        assert self._rows is not None
        self._end_cell()
        if not self._rows:
            self._rows.append([])
        if not self._rows[-1] and (tag.name == "th" or self._in_head) and self._header == len(self._rows) - 1:
            self._header += 1
        spans = {name.lower(): max(1, min(int(number), 1000)) for name, number in _SPAN.findall(tag.attributes)}
        self._cell = {"text": "", "rows": spans.get("rowspan", 1), "columns": spans.get("colspan", 1)}
        self._rows[-1].append(self._cell)

    def _end_cell(self) -> None:
        if self._cell is not None:
            self._cell["text"] = " ".join("".join(self._text).split())
        self._cell, self._text = None, []

    def _end_table(self) -> None:
        self._end_cell()
        rows = [row for row in self._rows or [] if row]
        self._rows, self._nested = None, 0
        if rows:
            self._blocks.append(table(rows, min(self._header, len(rows))))

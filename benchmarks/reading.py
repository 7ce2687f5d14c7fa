"""The content of Markdown for a reader: words without marks, headings, list items, and tables as grids of cells."""

import html
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from typing import NamedTuple

_TAGS = (
    "a|b|i|u|s|p|br|hr|em|li|ol|td|th|tr|ul|div|img|ins|del|pre|sub|sup|code|span|mark|small|strong|table|tbody|thead"
    "|tfoot|caption|figure|figcaption|center|blockquote|footer|header|h[1-6]"
)
_INLINE = re.compile(r"</?(?:a|b|i|u|s|em|ins|del|sub|sup|code|span|mark|small|strong)(?:\s[^<>]*)?/?>", re.IGNORECASE)
_TAG = re.compile(rf"<!--.*?-->|</?(?:{_TAGS})(?:\s[^<>]*)?/?>", re.IGNORECASE | re.DOTALL)
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)[^<>\s]+)>")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()\s]*(?:\s\"[^\"]*\")?\)")
_FOOTNOTE = re.compile(r"\[\^(\w+)\]:?")
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~$&-])")
_RULE = re.compile(r"^[ \t]*(?:[-*_][ \t]*){3,}$", re.MULTILINE)
_DELIMITER = re.compile(r"^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")
_START = re.compile(r"^[ \t]*(?:>[ \t]*)*(?:#{1,6}[ \t]+|(?:[-+*•●▪◦‣][ \t]+)+(?:\[[ xX]\][ \t]+)?)?", re.MULTILINE)
_UNDERSCORES = re.compile(r"(?<!\w)_+|_+(?!\w)")
_HEADING = re.compile(r"^ {0,3}(?:> ?)*(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
_UNDERLINE = re.compile(r"^ {0,3}(=+|-+)[ \t]*$")
_HTML_HEADING = re.compile(r"<h([1-6])[^<>]*>(.*?)</h\1>", re.IGNORECASE | re.DOTALL)
_ITEM = re.compile(r"^[ \t]*(?:> ?)*(?:[-*+]|(\d{1,3})[.)])[ \t]+(.*)$")
_ALIKE = str.maketrans(
    dict.fromkeys("‐‑‒–—―−", "-")
    | dict.fromkeys("‘’‚‛′", "'")
    | dict.fromkeys("“”„‟″«»", '"')
    | dict.fromkeys("⋅∙・", "·")
    | dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", None)
)
_PIPE = re.compile(r"(?<!\\)\|")


class Heading(NamedTuple):
    """`level`: 1 is the highest."""

    level: int
    text: str


class Item(NamedTuple):
    """One item of a list."""

    ordered: bool
    text: str


class Cell(NamedTuple):
    """A cell. A cell that spans rows or columns is in each of their places, with the same `origin`."""

    text: str
    origin: tuple[int, int]


Grid = list[list[Cell]]
"""Rows of a table, padded to the same length."""


@dataclass(frozen=True)
class Reading:
    """One page of Markdown."""

    markdown: str

    @cached_property
    def text(self) -> str:
        """All words, in order."""
        lines = [line for line in self.markdown.splitlines() if not ("|" in line and _DELIMITER.match(line))]
        return plain("\n".join(_PIPE.sub(" ", line) if "|" in line else line for line in lines))

    @cached_property
    def folded(self) -> str:
        return self.text.casefold()

    @cached_property
    def headings(self) -> list[Heading]:
        return list(_headings(self.markdown))

    @cached_property
    def items(self) -> list[Item]:
        return list(_items(self.markdown.splitlines()))

    @cached_property
    def tables(self) -> list[Grid]:
        parser = _HtmlTables()
        parser.feed(self.markdown)
        parser.close()
        return [*_pipe_tables(self.markdown.splitlines()), *parser.grids]


def plain(text: str) -> str:
    """Return the text without Markdown marks and HTML tags, with one kind of quotes, dashes and spaces, in NFKC."""
    text = _AUTOLINK.sub(r"\1", text)
    text = html.unescape(_TAG.sub(" ", _INLINE.sub("", text)))
    text = _FOOTNOTE.sub(r"\1", _LINK.sub(r"\1", text))
    text = _START.sub("", _RULE.sub("", text))
    text = _ESCAPE.sub(r"\1", text).replace("~~", "").replace("*", "").replace("`", "")
    text = unicodedata.normalize("NFKC", _UNDERSCORES.sub("", text)).translate(_ALIKE)
    return " ".join(text.split())


def _headings(markdown: str) -> Iterator[Heading]:
    before = ""
    for line in markdown.splitlines():
        if mark := _HEADING.match(line):
            yield Heading(len(mark[1]), plain(mark[2]))
        elif (mark := _UNDERLINE.match(line)) and before.strip() and "|" not in before and not _HEADING.match(before):
            yield Heading(1 if mark[1][0] == "=" else 2, plain(before))
        before = line
    for level, text in _HTML_HEADING.findall(markdown):
        yield Heading(int(level), plain(text))


def _items(lines: list[str]) -> Iterator[Item]:
    """Yield list items, with the lines that continue them."""
    ordered, parts = False, list[str]()
    for line in [*lines, ""]:
        marker = _ITEM.match(line)
        if parts and (marker or not line.strip() or _HEADING.match(line) or line.lstrip().startswith("|")):
            yield Item(ordered, plain(" ".join(parts)))
            parts = []
        if marker and not _RULE.match(line):
            ordered, parts = marker[1] is not None, [marker[2]]
        elif parts:
            parts.append(line.strip())


def _pipe_tables(lines: list[str]) -> Iterator[Grid]:
    number = 1
    while number < len(lines):
        if "|" in lines[number] and "|" in lines[number - 1] and _DELIMITER.match(lines[number]):
            rows = [_pipe_row(lines[number - 1])]
            number += 1
            while number < len(lines) and "|" in lines[number]:
                rows.append(_pipe_row(lines[number]))
                number += 1
            width = max(map(len, rows))
            yield [
                [Cell(text, (y, x)) for x, text in enumerate(row + [""] * (width - len(row)))]
                for y, row in enumerate(rows)
            ]
        number += 1


def _pipe_row(line: str) -> list[str]:
    parts = _PIPE.split(line.strip())
    if not parts[0].strip():
        parts = parts[1:]
    if parts and not parts[-1].strip():
        parts = parts[:-1]
    return [plain(part.strip()) for part in parts]


class _HtmlTables(HTMLParser):
    """Collects the grids of HTML tables and fills spans. A table within a cell is text of that cell."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.grids: list[Grid] = []
        self._depth = 0
        self._places: dict[tuple[int, int], Cell] = {}
        self._row = -1
        self._cell: list[str] | None = None
        self._span = (1, 1)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._depth += 1
            if self._depth == 1:
                self._places, self._row = {}, -1
        elif self._depth == 1 and tag == "tr":
            self._end_cell()
            self._row += 1
        elif self._depth == 1 and tag in {"td", "th"}:
            self._end_cell()
            attributes = dict(attrs)
            self._cell, self._span = [], (_count(attributes.get("rowspan")), _count(attributes.get("colspan")))
        elif self._cell is not None and tag in {"br", "p", "div", "li"}:
            self._cell.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._depth == 1 and tag in {"td", "th", "tr", "table"}:
            self._end_cell()
        if tag == "table" and self._depth:
            self._depth -= 1
            if not self._depth and self._places:
                self.grids.append(_grid(self._places))

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def _end_cell(self) -> None:
        if self._cell is None:
            return
        y, x = max(self._row, 0), 0
        while (y, x) in self._places:
            x += 1
        cell = Cell(plain("".join(self._cell)), (y, x))
        for down in range(self._span[0]):
            for right in range(self._span[1]):
                self._places[y + down, x + right] = cell
        self._cell = None


def _count(value: str | None) -> int:
    return min(int(value), 100) if value and value.isdigit() and int(value) else 1


def _grid(places: dict[tuple[int, int], Cell]) -> Grid:
    height, width = (max(place[axis] for place in places) + 1 for axis in (0, 1))
    return [[places.get((y, x), Cell("", (y, x))) for x in range(width)] for y in range(height)]

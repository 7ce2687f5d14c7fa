"""Markdown as blocks, in the shape that `layout.as_dicts` gives them, without boxes.

For pages of which only the Markdown is known: a model wrote it. Any text is valid Markdown, so nothing fails here.
"""

import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

Json = dict[str, Any]

_FENCE = re.compile(r" {0,3}(```|~~~)")
_ENDS_AN_ITEMS_TEXT = frozenset({"heading_open", "fence", "code_block", "html_block", "table_open", "blockquote_open"})
_MARKDOWN = MarkdownIt("commonmark").enable("table")


def blocks(markdown: str) -> list[Json]:
    """The blocks of a page in reading order: `type`, `text`, `bbox` (None), and what its type adds."""
    found: list[Json] = []
    for block in _Reader(_MARKDOWN.parse(_whole_tables(markdown))).blocks():
        if block["type"] == "more" and found:  # a further paragraph of a list item
            found[-1]["text"] += f" {block['text']}"
        else:
            found.append(block)
    return found


def plain_text(markdown: str) -> str:
    """What a page says, without any markup: a line for each block, and for each row of a table."""
    return "\n".join(block["text"] for block in blocks(markdown) if block["text"])


def _block(kind: str, text: str, **more: Any) -> Json:
    return {"type": kind, "text": text, "bbox": None, **more}


def _whole_tables(markdown: str) -> str:
    """The Markdown without the blank lines inside HTML tables, at which CommonMark would end them."""
    lines = markdown.split("\n")
    kept: list[str] = []
    fence, last = "", max((place for place, line in enumerate(lines) if "</table>" in line), default=-1)
    inside = False
    for place, line in enumerate(lines):
        found = _FENCE.match(line)
        if found and not inside:
            fence = "" if fence == found[1] else fence or found[1]
        if not fence and place < last and line.lstrip().startswith("<table"):
            inside = True
        if not inside or line.strip():
            kept.append(line)
        if inside and "</table>" in line:
            inside = False
            kept.append("")
    return "\n".join(kept)


class _Reader:
    """Goes through the tokens of one page."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._lists = 0
        self._quotes = 0
        self._marker = ""
        """Of the list item whose first text has not come yet."""
        self._more = False
        """Whether the block before is a list item."""
        self._rows: list[list[Json]] = []
        self._header = 0

    def blocks(self) -> Iterator[Json]:
        kind, level = "paragraph", 0
        for token in self._tokens:
            self._more = self._more and token.type not in _ENDS_AN_ITEMS_TEXT
            match token.type:
                case "heading_open":
                    kind, level = "heading", int(token.tag[1:])
                case "paragraph_open":
                    kind = "paragraph"
                case "inline":
                    yield from self._text(kind, level, token)
                case "fence" | "code_block":
                    yield _block("code", token.content.rstrip("\n"))
                case "html_block":
                    yield from html_blocks(token.content)
                case "table_close":
                    yield table(self._rows, self._header)
                case _:
                    kind = self._move(token, kind)

    def _move(self, token: Token, kind: str) -> str:
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                self._lists += 1
            case "bullet_list_close" | "ordered_list_close":
                self._lists -= 1
            case "list_item_open":
                self._marker = f"{token.info}{token.markup}" if token.info else "-"
            case "list_item_close":
                self._marker = ""
            case "blockquote_open":
                self._quotes += 1
            case "blockquote_close":
                self._quotes -= 1
            case "table_open":
                self._rows, self._header = [], 0
            case "tr_open":
                self._rows.append([])
            case "th_open" | "td_open":
                self._header += token.type == "th_open" and not self._rows[-1]
                return "cell"
        return kind

    def _text(self, kind: str, level: int, token: Token) -> Iterator[Json]:
        text = plain(token)
        children = [child for child in token.children or () if child.content or child.type == "image"]
        if kind == "cell":
            self._rows[-1].append({"text": text, "rows": 1, "columns": 1})
        elif children and all(child.type == "image" for child in children):
            self._more = False
            for picture in children:
                yield _block("picture", picture.content, link=str(picture.attrs.get("src", "")))
        elif not text:
            return
        elif kind == "heading":
            yield _block("heading", text, level=level)
        elif self._marker:
            yield _block("list_item", text, marker=self._marker, depth=self._lists - 1)
            self._marker, self._more = "", True
        elif self._lists and self._more:
            yield _block("more", text)
        else:
            yield _block("quote" if self._quotes else "paragraph", text)


def plain(token: Token) -> str:
    """The text of an inline token, with single spaces; of a picture, what it shows."""
    parts = []
    for child in token.children or ():
        if child.type in {"text", "code_inline", "image"}:
            parts.append(child.content)
        elif child.type in {"softbreak", "hardbreak"} or child.content.lower().startswith("<br"):
            parts.append(" ")
    return " ".join("".join(parts).split())


def table(rows: Sequence[Sequence[Json]], header: int) -> Json:
    """A block of type table."""
    text = "\n".join("\t".join(cell["text"] for cell in row) for row in rows)
    return _block("table", text, header=header, rows=[list(row) for row in rows])


def html_blocks(html: str) -> list[Json]:
    """The tables of a piece of HTML, and its other text as paragraphs; comments, scripts and styles are left out."""
    reader = _HtmlReader()
    reader.feed(html)
    reader.close()
    reader.end_paragraph()
    return reader.blocks


class _HtmlReader(HTMLParser):
    _SILENT = frozenset({"script", "style", "template"})
    _INLINE = frozenset({"a", "b", "em", "i", "small", "span", "strong", "sub", "sup", "u", "img", "code"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Json] = []
        self._text: list[str] = []
        self._rows: list[list[Json]] | None = None
        self._cell: Json | None = None
        self._nested = 0
        self._silent = 0
        self._in_head = False
        self._header = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in self._SILENT
        if tag == "table":
            self._nested += 1
            if self._nested == 1:
                self.end_paragraph()
                self._rows, self._header, self._in_head = [], 0, False
        elif self._rows is None or self._nested > 1:
            if tag not in self._INLINE:
                self._break()
        elif tag == "thead":
            self._in_head = True
        elif tag == "tr":
            self._end_cell()
            self._rows.append([])
        elif tag in {"td", "th"}:
            self._begin_cell(tag, dict(attrs))
        elif tag not in self._INLINE:
            self._text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag == "table" and self._nested:
            self._nested -= 1
            if not self._nested:
                self._end_table()
        elif tag == "thead":
            self._in_head = False
        elif self._rows is None and tag not in self._INLINE:
            self._break()

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._text.append(data)

    def close(self) -> None:
        super().close()
        if self._rows is not None:
            self._end_table()

    def end_paragraph(self) -> None:
        """What was read since the last block becomes one, if it is any text."""
        text = " ".join("".join(self._text).split())
        self._text = []
        if text:
            self.blocks.append(_block("paragraph", text))

    def _break(self) -> None:
        if self._rows is None:
            self.end_paragraph()
        else:
            self._text.append(" ")

    def _begin_cell(self, tag: str, attributes: dict[str, str | None]) -> None:
        assert self._rows is not None
        self._end_cell()
        if not self._rows:
            self._rows.append([])
        if not self._rows[-1] and (tag == "th" or self._in_head) and self._header == len(self._rows) - 1:
            self._header += 1
        self._cell = {
            "text": "", "rows": _span(attributes.get("rowspan")), "columns": _span(attributes.get("colspan"))
        }  # fmt: skip
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
            self.blocks.append(table(rows, min(self._header, len(rows))))


def _span(value: str | None) -> int:
    """What an attribute says, between 1 and 1,000."""
    text = (value or "").strip()
    return max(1, min(int(text), 1000)) if text.isascii() and text.isdigit() and len(text) < 9 else 1

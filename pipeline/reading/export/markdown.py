"""Parse Markdown into blocks with the shape of `layout.as_dicts`, but without boxes.

Used for pages known only as Markdown, which a model wrote. Parsing never fails, since any text is valid Markdown; text
that takes too long to parse becomes plain paragraphs.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.export import hypertext
from pipeline.reading.export.effort import by_child, is_small
from pipeline.reading.export.hypertext import Json, new_block, table

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_FENCE = re.compile(r" {0,3}(```|~~~)")
_ENDS_AN_ITEMS_TEXT = frozenset({"heading_open", "fence", "code_block", "html_block", "table_open", "blockquote_open"})
_MARKUP = re.compile(r"</?[A-Za-z][^<>\n]{0,200}>|!?\[|\]|[|*`~]+|-{3,}|\\(?=\W)|^[#>\s]+", re.MULTILINE)
MAX_CHARACTERS = 400_000
"""The longest text to parse; longer texts become paragraphs."""
_MOST_BLOCKS = 20_000
_CHILDREN = BoundedSemaphore(4)
"""As many as exports run at once, of which one caller has half."""


def blocks(markdown: str) -> list[Json]:
    """Return the blocks of a page of Markdown in reading order, as dicts: `type`, `text`, `bbox` (None), and the fields
    of their type. A child process parses all but small texts.

    A text that is too long, or takes too long to parse, becomes paragraphs. Raises `UnitError` (transient) if no child
    starts.
    """
    if is_small([markdown]):
        return parsed(markdown)
    try:
        if len(markdown) <= MAX_CHARACTERS:
            with _CHILDREN:
                parsed_blocks: list[Json] = by_child("blocks", text=markdown)["blocks"]
            return parsed_blocks
    except UnitError as error:
        if error.kind is not ErrorKind.PERMANENT:
            raise
    paragraphs = markdown.split("\n\n", _MOST_BLOCKS)
    return [new_block("paragraph", " ".join(part.split())) for part in paragraphs if part.strip()]


def parsed(markdown: str) -> list[Json]:
    """Return the blocks of a page of Markdown, parsed in this process without a time limit. For texts from outside use
    `blocks`, which parses large ones in a child."""
    result: list[Json] = []
    for block in _Reader(_parser().parse(_whole_tables(markdown))).blocks():
        if block["type"] == "more" and result:  # a further paragraph of a list item
            result[-1]["text"] += f" {block['text']}"
        else:
            result.append(block)
    return _bounded(result)


def _bounded(found: list[Json]) -> list[Json]:
    """Return the blocks, at most `_MOST_BLOCKS` of them and one more: a paragraph with the texts of the others. Each
    block takes thirty times the memory of a short text."""
    if len(found) <= _MOST_BLOCKS:
        return found
    rest = "\n".join(block["text"] for block in found[_MOST_BLOCKS:])
    return [*found[:_MOST_BLOCKS], new_block("paragraph", rest)]


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt  # noqa: PLC0415  # only parsing needs these seventy modules

    return MarkdownIt("commonmark").enable("table")


def plain_text(markdown: str) -> str:
    """Return the text of a page of Markdown without markup: a line for each block and for each row of a table. A large
    text is not parsed, and only loses most of its marks."""
    if not is_small([markdown]):
        return _MARKUP.sub(" ", markdown)
    return "\n".join(block["text"] for block in parsed(markdown) if block["text"])


def _whole_tables(markdown: str) -> str:
    """Remove the blank lines inside HTML tables, at which CommonMark would end them."""
    lines = markdown.split("\n")
    kept: list[str] = []
    fence, last = "", max((place for place, line in enumerate(lines) if "</table>" in line), default=-1)
    inside = False
    for place, line in enumerate(lines):
        mark = _FENCE.match(line)
        if mark and not inside:
            fence = "" if fence == mark[1] else fence or mark[1]
        if not fence and place < last and line.lstrip().startswith("<table"):
            inside = True
        if not inside or line.strip():
            kept.append(line)
        if inside and "</table>" in line:
            inside = False
            kept.append("")
    return "\n".join(kept)


class _Reader:
    """Builds blocks from the tokens of one page."""

    def __init__(self, tokens: "Sequence[Token]") -> None:
        self._tokens = tokens
        self._lists = 0
        self._quotes = 0
        self._marker = ""
        """The marker of the current list item, until its first text."""
        self._more = False
        """Whether the last block was a list item, which further paragraphs continue."""
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
                    yield new_block("code", token.content.rstrip("\n"))
                case "html_block":
                    yield from hypertext.blocks(token.content)
                case "table_close":
                    yield table(self._rows, self._header)
                case _:
                    kind = self._move(token, kind)

    def _move(self, token: "Token", kind: str) -> str:
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

    def _text(self, kind: str, level: int, token: "Token") -> Iterator[Json]:
        text = plain(token)
        children = [child for child in token.children or () if child.content or child.type == "image"]
        if kind == "cell":
            self._rows[-1].append({"text": text, "rows": 1, "columns": 1})
        elif children and all(child.type == "image" for child in children):
            self._more = False
            for picture in children:
                yield new_block("picture", picture.content, link=str(picture.attrs.get("src", "")))
        elif not text:
            return
        elif kind == "heading":
            yield new_block("heading", text, level=level)
        elif self._marker:
            yield new_block("list_item", text, marker=self._marker, depth=self._lists - 1)
            self._marker, self._more = "", True
        elif self._lists and self._more:
            yield new_block("more", text)
        else:
            yield new_block("quote" if self._quotes else "paragraph", text)


def plain(token: "Token") -> str:
    """Return the text of an inline token with single spaces; a picture becomes its description."""
    parts = []
    for child in token.children or ():
        if child.type in {"text", "code_inline", "image"}:
            parts.append(child.content)
        elif child.type in {"softbreak", "hardbreak"} or child.content.lower().startswith("<br"):
            parts.append(" ")
    return " ".join("".join(parts).split())

"""Split text into chunks to embed, each with its place."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from pipeline.reading.sandbox.limits import Unwanted, Wanted, refused
from pipeline.reading.text.sections import SEPARATOR, Reading, Section

MODEL = "gpt-3.5-turbo"
"""The model whose tokens are counted. Other models count slightly differently, so leave some room."""

_WINDOW = 24_000
"""Characters given to the splitter at once. Its time grows with the square of a run without spaces: 20,000 Chinese
letters take 0.08 s, 100,000 take 1.2 s. While it works, it blocks the process's other threads."""

_CHARACTERS_PER_TOKEN = 12
_BEFORE_WORD = re.compile(r"(?<=[A-Za-z.,])(?= [A-Za-z])")
"""Places that no token crosses."""
_GAP = re.compile(r"\s{200,}")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
_MARKS = re.compile(r"[*_`]+|!?\[([^\]\n]*)\]\([^)\s]*(?:[ \t]+\"[^\"\n]*\")?\)")
_PERMALINKS = frozenset({"#", "¶", "§"})
"""Texts of a heading's link to itself."""
_MAX_HEADING = 200
_MAX_NAME = 1_000
"""The inspected part of a heading's line, in characters."""


@dataclass(frozen=True)
class Chunk:
    """A piece of text. `start` and `end`: its character offsets in the reading's whole `text`. `heading`: the headings
    above it, the outermost first."""

    text: str
    heading: tuple[str, ...]
    page: int | None
    start: int
    end: int
    source: str = ""


@dataclass(frozen=True)
class _Path:
    """The headings above the text after `offset`."""

    offset: int
    levels: tuple[int, ...]
    names: tuple[str, ...]


def split(reading: Reading, tokens: int, overlap: int, wanted: Wanted = lambda: True) -> list[Chunk]:
    """Return the reading's chunks in order, without blank ones, of at most `tokens` tokens, `overlap` of which repeat
    the end of the previous chunk. Equal texts give equal chunks. No chunk crosses the end of a section, and none is
    only a heading that the next chunk has in its `heading`.

    Raises `UnitError` with code `chunk_size` for invalid sizes, or `Unwanted`.
    """
    if not 0 <= overlap < tokens:
        raise refused(f"Chunks of {tokens} tokens cannot overlap by {overlap}.", "chunk_size")
    markdown = MarkdownSplitter.from_tiktoken_model(MODEL, tokens, overlap=overlap)
    plain = TextSplitter.from_tiktoken_model(MODEL, tokens, overlap=overlap)
    window = max(_WINDOW, tokens * _CHARACTERS_PER_TOKEN)
    chunks: list[Chunk] = []
    at, above = 0, _Path(0, (), ())
    for section in reading.sections:
        splitter: MarkdownSplitter | TextSplitter = plain if section.plain else markdown
        paths = [_Path(0, (), ())] if section.plain else _paths(section.text, _inherited(section, above))
        offsets = [path.offset for path in paths]
        known = 0
        for start, text in _pieces(section.text, splitter, window):
            if not wanted():
                raise Unwanted("The chunks are no longer wanted.")
            end = start + len(text)
            new = min(max(start, known), end - 1)  # The text before repeats the previous chunk.
            path = paths[bisect_right(offsets, _first_body(text[new - start :], new)) - 1]
            known = end
            chunks.append(Chunk(text, path.names, section.page, at + start, at + end, section.source))
            if len(chunks) > 1 and _announces(chunks[-2], chunks[-1]):
                del chunks[-2]
        above = paths[-1]
        at += len(section.text) + len(SEPARATOR)
    return chunks


def count_tokens(text: str) -> int:
    """Return the number of tokens in a text, as counted for chunks."""
    return sum(map(_count, _BEFORE_WORD.split(text)))  # most words of a large document are known


@lru_cache(maxsize=5_000)
def _count(text: str) -> int:
    # The splitter does not return its count: search for the least size that the text fits into.
    fits = range(1, len(text.encode(errors="replace")) + 1)
    return 1 + bisect_left(fits, True, key=lambda tokens: len(_counter(tokens).chunks(text)) <= 1)


def _counter(tokens: int) -> TextSplitter:
    return TextSplitter.from_tiktoken_model(MODEL, tokens, trim=False)


def _announces(chunk: Chunk, following: Chunk) -> bool:
    """Whether the chunk consists only of headings above `following`."""
    lines = [line for line in chunk.text.split("\n") if line.strip()]
    if not all(_HEADING.match(line) or (place and _UNDERLINE.match(line)) for place, line in enumerate(lines)):
        return len(lines) == 2 and bool(_UNDERLINE.match(lines[1])) and chunk.heading == following.heading
    return bool(chunk.heading) and chunk.heading == following.heading[: len(chunk.heading)]


def _inherited(section: Section, above: _Path) -> _Path:
    """Return the headings above a section's beginning: a page continues under those of the previous page, a web page of
    a sitemap starts without headings."""
    return _Path(0, (), ()) if section.source else _Path(0, above.levels, above.names)


def _pieces(text: str, splitter: MarkdownSplitter | TextSplitter, window: int) -> Iterator[tuple[int, str]]:
    """Yield (start, chunk) of the whole text, window by window: the next window begins at the last chunk, which may
    have been cut off."""
    at = 0
    while at < len(text):
        part = text[at : at + window]
        gap = _GAP.search(part)  # The splitter takes forever on thousands of blank lines.
        if gap:
            part = part[: gap.start()]
        chunks = [(start, chunk) for start, chunk in splitter.chunk_indices(part) if chunk.strip()]
        whole = gap is not None or at + window >= len(text) or len(chunks) < 2
        for start, chunk in chunks if whole else chunks[:-1]:
            yield at + start, chunk
        at += (gap.end() if gap else window) if whole else chunks[-1][0]


def _first_body(text: str, start: int) -> int:
    """Return the offset in the section of the chunk's first line that is not a heading, or of the chunk's last
    character: a chunk that opens with a heading belongs below it."""
    at = start
    for line in text.splitlines(keepends=True):
        if line.strip() and not _HEADING.match(line.rstrip("\n")):
            return at
        at += len(line)
    return start + len(text) - 1


def _paths(text: str, above: _Path) -> list[_Path]:
    """Return the headings above each place of a Markdown text, one entry for each heading, in order; the first entry is
    `above`."""
    paths = [above]
    at = 0
    fence = ""
    previous = ""
    previous_at = 0
    for line in text.split("\n"):
        if match := _FENCE.match(line):
            mark = match[1]
            if not fence:
                fence = mark
            elif mark[0] == fence[0] and len(mark) >= len(fence) and not line.strip(" " + mark[0]):
                fence = ""
        elif not fence:
            if heading := _HEADING.match(line):
                paths.append(_below(paths[-1], at, len(heading[1]), _unclosed(heading[2])))
            elif previous.strip() and not _is_block(previous) and (underline := _UNDERLINE.match(line)):
                paths.append(_below(paths[-1], previous_at, 1 if "=" in underline[1] else 2, previous))
        previous, previous_at = ("" if fence else line), at
        at += len(line) + 1
    return paths


def _unclosed(heading: str) -> str:
    """Return a heading's text without the `##` that may close it."""
    text = heading.rstrip(" \t")
    return text.rstrip("#").rstrip(" \t") or text


def _is_block(line: str) -> bool:
    """Whether an underline makes no heading of the line: a table's row, a list, a quotation."""
    return line.lstrip().startswith(("|", "-", "*", "+", ">", "#", "```", "~~~")) or line.startswith("    ")


def _words_of_mark(match: re.Match[str]) -> str:
    return match[1] if match[1] and match[1] not in _PERMALINKS else ""


def _below(path: _Path, offset: int, level: int, name: str) -> _Path:
    kept = sum(1 for known in path.levels if known < level)
    shown = " ".join(_MARKS.sub(_words_of_mark, name[:_MAX_NAME]).split())[:_MAX_HEADING]
    return _Path(offset, (*path.levels[:kept], level), (*path.names[:kept], shown or name[:_MAX_HEADING]))

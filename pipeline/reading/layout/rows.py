"""Group lines side by side into rows, and read the words in them."""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from operator import attrgetter

from pipeline.reading.layout.model import PLAIN, Box, Line, Run, Runs, Span, around
from pipeline.reading.layout.text import is_bullet

CELL_GAP = 1.5
"""The least space between two pieces of a row, in text sizes, that makes them cells and not words of a sentence."""

_HEAVY = 1.3
"""Bold type has strokes 1.35 to 1.8 times as wide, capitals up to 1.25 times."""
_TOP_LEFT, _STYLE = attrgetter("top", "left"), attrgetter("style")
_TOUCHING = 0.12
_RAISED = re.compile(r"[\d\W]{1,6}|\w{1,2}")
_RAISED_CHARS = 6
_CLOSING = tuple(",.;:!?)]}%”’")
_NUMBER = re.compile(r"\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)]$")


class Row:
    """Lines side by side, from left to right; `size`, `top` and `bottom` are those of the longest line."""

    def __init__(self, cells: Sequence[Line]) -> None:
        if len(cells) == 1:
            self.cells = tuple(cells)
            self.main = main = cells[0]
            self.left, self.right = main.left, main.right
            self.has_marker = self.is_tabular = self.is_far_apart = False
            self.is_heavy = main.weight >= _HEAVY
            if main.spans:
                self.text = main.text
        else:
            self.cells = tuple(sorted(cells, key=lambda cell: cell.left))
            self.main = main = max(self.cells, key=lambda cell: len(cell.text) * (1 if cell.size > 0 else 0))
            self.left = min([cell.left for cell in self.cells])
            self.right = max([cell.right for cell in self.cells])
        self.size, self.top, self.bottom = main.size, main.top, main.bottom

    @cached_property
    def text(self) -> str:
        return text_of(self.tokens)

    @cached_property
    def tokens(self) -> list[Span]:
        """The words of the row in reading order."""
        if len(self.cells) == 1:
            return line_tokens(self.main)
        words: list[Span] = []
        before: Line | None = None
        for cell in self.cells:
            part = line_tokens(cell)
            shift = self._shift(cell)
            if shift:
                part = [token._replace(style=token.style._replace(shift=shift)) for token in part]
            if part and before is not None and _touches(before, cell, tightly=bool(shift)):
                part[0] = part[0]._replace(spaced=False)
            words += part
            before = cell
        return words

    @cached_property
    def has_marker(self) -> bool:
        """Whether the first line of several in the row is only a list's bullet or number."""
        first = self.cells[0].text.strip()
        return len(self.cells) > 1 and (is_bullet(first) or bool(_NUMBER.match(first)))

    @cached_property
    def is_tabular(self) -> bool:
        """Whether lines after any list marker are so far apart that they read as cells."""
        cells = self.cells[1:] if self.has_marker else self.cells
        return any(b.left - a.right > CELL_GAP * max(a.size, b.size) for a, b in pairwise(cells))

    @cached_property
    def is_far_apart(self) -> bool:
        """Whether two neighbours in the row, one of which may be a list marker, are a cell's distance apart."""
        return any(b.left - a.right > CELL_GAP * max(a.size, b.size) for a, b in pairwise(self.cells))

    @cached_property
    def is_bold(self) -> bool:
        return all(token.style.bold for token in self.tokens if _has_letter(token.text)) and _has_letter(self.text)

    @cached_property
    def is_plain(self) -> bool:
        """Whether no word of the row is bold."""
        return not any(token.style.bold and _has_letter(token.text) for token in self.tokens)

    @cached_property
    def is_heavy(self) -> bool:
        """Whether recognition saw heavier strokes in the whole row than in most of its page."""
        return all(cell.weight >= _HEAVY for cell in self.cells)

    @cached_property
    def is_measured(self) -> bool:
        """Whether recognition measured the size and the weight of the type."""
        return all(cell.weight for cell in self.cells)

    @cached_property
    def is_mono(self) -> bool:
        mono = sum([len(token.text) for token in self.tokens if token.style.mono])
        return mono > 0 and mono > 0.9 * sum(len(token.text) for token in self.tokens)

    @property
    def box(self) -> Box:
        return self.main.box if len(self.cells) == 1 else around([cell.box for cell in self.cells])

    def _shift(self, cell: Line) -> int:
        """Return 1 for a small raised figure beside other text, -1 for a lowered one, otherwise 0."""
        main = self.main
        rise = main.bottom - cell.bottom
        if not 0 < cell.size < 0.85 * main.size or not (rise > 0.15 * main.size or rise < -0.08 * main.size):
            return 0
        near = 0.4 * self.size
        if not any(abs(cell.left - o.right) < near or abs(o.left - cell.right) < near for o in self.cells):
            return 0  # A small figure in its own cell.
        if not _RAISED.fullmatch(cell.text):
            return 0
        # Recognition's boxes do not tell lowered figures from commas.
        return 1 if rise > 0 else -1 if cell.spans else 0


def rows(lines: Iterable[Line]) -> list[Row]:
    """Group lines side by side into rows, from top to bottom; the lines may have any order."""
    groups: list[list[Line]] = []
    for line in sorted(lines, key=_TOP_LEFT):
        for row in groups[-1:-4:-1]:
            # Most lines begin below the one before: they need no closer look.
            if (line.top < row[0].bottom or len(row) > 1) and _fits_row(row, line):
                row.append(line)
                break
        else:
            groups.append([line])
    return [Row(cells) for cells in groups]


def line_tokens(line: Line) -> list[Span]:
    """Return the words of a line; without styles, and each with the line's own place, if the source knows none."""
    if line.spans:
        first = line.spans[0]
        return [first if first.spaced else first._replace(spaced=True), *line.spans[1:]]
    words, ends = line.text.split(), (line.left, line.right)
    if len(line.sure) != len(words):
        return [Span(word, *ends) for word in words]
    return [Span(word, *ends, PLAIN._replace(sure=sure)) for word, sure in zip(words, line.sure, strict=True)]


def text_of(tokens: Iterable[Span]) -> str:
    return "".join([f" {token.text}" if token.spaced else token.text for token in tokens]).strip()


def runs_of(tokens: Sequence[Span]) -> Runs:
    """Return the words as running text; neighbours in one style are joined."""
    runs = [
        Run("".join([f" {token.text}" if token.spaced else token.text for token in same]), style)
        for style, same in groupby(tokens, key=_STYLE)
    ]
    if runs and tokens[0].spaced:
        runs[0] = runs[0]._replace(text=runs[0].text[1:])
    return tuple(runs)


def _fits_row(row: Sequence[Line], line: Line) -> bool:
    # Compare with the tallest alone: comparing neighbour with neighbour, a row would grow down the page.
    if len(row) > 100:
        return False
    tallest = max(row, key=_height) if len(row) > 1 else row[0]
    if line.top >= tallest.bottom:
        return False
    smaller = min(_height(tallest), _height(line))
    overlap = min(tallest.bottom, line.bottom) - max(tallest.top, line.top)
    if smaller <= 0 or overlap < 0.5 * smaller:
        return False
    if len(line.text) <= _RAISED_CHARS and line.size < 0.85 * tallest.size and overlap > 0.55 * smaller:
        return True  # A raised or lowered figure, whatever word boundaries the source gives.
    return overlap > 0.9 * smaller or not any(
        min(cell.right, line.right) - max(cell.left, line.left)
        > 0.3 * min(cell.right - cell.left, line.right - line.left)
        for cell in row  # cells above or below the line, not beside it
    )


def _height(line: Line) -> float:
    return line.bottom - line.top


def _touches(before: Line, cell: Line, *, tightly: bool) -> bool:
    gap = cell.left - before.right
    if tightly or (before.spans and cell.spans):
        return gap < _TOUCHING * min(before.size, cell.size)
    return gap < 0.3 * cell.size and cell.text.startswith(_CLOSING)


def _has_letter(text: str) -> bool:
    return any(map(str.isalnum, text))

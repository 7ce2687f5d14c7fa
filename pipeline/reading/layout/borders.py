"""Find a table's columns by its text: borders are stretches of x where its rows have no word."""

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pipeline.reading.layout.cells import spans_of, sub_line, text_size
from pipeline.reading.layout.legibility import is_garbled
from pipeline.reading.layout.model import Line, Span
from pipeline.reading.layout.text import is_number

_MAX_COLUMNS = 60
WORD_GAP = 0.6
"""The least space between two words, in text sizes, that may separate two columns."""

_LEAST_GAP = 0.48
_WIDER = 1.4
_MAX_SPACE = 0.75  # text sizes
_NUMBER_GAP = 0.4  # text sizes between two numbers, which are never words of a sentence
_THOUSANDS, _GROUP = re.compile(r"[-(]?\d{1,3}$"), re.compile(r"\d{3}(?!\d)")
_MONO_WORD_GAP = 0.8  # A space is as wide as any letter.
_BEFORE = {"$", "€", "£", "¥", "₩", "US$", "USD", "EUR", "CHF", "Rs", "₹"}
_AFTER = {"%", ")", ")%", "€"}
_FEW_ROWS = 3
_MIN_GAPS = (1.4, 0.9)  # text sizes, between columns of few and of more rows


class Border(NamedTuple):
    """The gap between two columns; its width is zero at a rule."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


class Placed(NamedTuple):
    """A cell's lines, which span the columns from `first` to `last`."""

    first: int
    last: int
    lines: list[Line]


def ruled_gap(lines: Sequence[Line]) -> float:
    """Return the least space between words, in text sizes, that may separate columns where rules show a table: wider
    than the usual space before words in lower case, with which no cell begins."""
    gaps = [
        (word.left - before.right) / line.size
        for line in lines
        for before, word in pairwise(spans_of(line))
        if word.text[:1].islower() and before.text[-1:].isalpha() and not word.style.mono
    ]
    usual = [gap for gap in gaps if gap < _MAX_SPACE]
    return max(_LEAST_GAP, _WIDER * median(usual)) if usual else _LEAST_GAP


def borders_of(rows: Sequence[Sequence[Line]], gap: float | None = None) -> list[Border]:
    """Return the gaps between columns, from left to right: the stretches of x where the rows have no word, ignoring
    rows that run across, and lines that recognition could not read, such as values printed over one another.

    `gap`: the least width, in text sizes, where rules show a table; None: no rules do, so gaps must be wider.
    """
    sound = [cells for row in rows if (cells := [line for line in row if not is_garbled(line)])]
    rows = sound if len(sound) > 1 else rows
    lines = [line for row in rows for line in row]
    size = text_size(lines)
    width = max(line.right for line in lines) - min(line.left for line in lines)
    if width <= 0:
        return []
    apart = WORD_GAP if gap is None else gap
    phrases = _telling([[_whole(part) for line in row for part in _phrases(line, apart)] for row in rows], width)
    few, many = _MIN_GAPS if gap is None else (1.6 * gap, gap)
    spans = [span for row in phrases for span in row]
    if 2 * sum(is_number(span.text) for span in spans) > len(spans):
        many = min(many, WORD_GAP)
    least = (many if len(phrases) > _FEW_ROWS else few) * size
    return [border for border in _emptiest(spans, len(phrases) // 12) if border.high - border.low >= least][
        :_MAX_COLUMNS
    ]


def _emptiest(spans: Sequence[Span], allowed: int) -> list[Border]:
    """Return the stretches that at most `allowed` spans cover."""
    ends = [sorted((span.left, span.right)) for span in spans]
    changes = sorted([(left, 0, 1) for left, _ in ends] + [(right, 1, -1) for _, right in ends])
    stretches: list[Border] = []
    level, low = 0, None
    for x, _, change in changes:
        level += change
        if level <= allowed and low is None:
            low = x
        elif level > allowed and low is not None:
            if low > changes[0][0]:
                stretches.append(Border(low, x))
            low = None
    return stretches


def without_symbols(rows: Sequence[Sequence[Placed]], borders: Sequence[Border]) -> list[Border]:
    """Return the borders without those between an amount and its currency or percent sign, which stands in a column of
    its own."""
    texts: dict[int, set[str]] = {}
    for row in rows:
        for cell in row:
            if cell.first == cell.last:
                texts.setdefault(cell.first, set()).add("".join(line.text for line in cell.lines).strip())
    before = {column for column, signs in texts.items() if signs <= _BEFORE}
    after = {column for column, signs in texts.items() if signs <= _AFTER}
    return [
        border for index, border in enumerate(borders) if not (index in before or (index + 1 in after and index > 0))
    ]


def _telling(rows: list[list[Span]], width: float) -> list[list[Span]]:
    """Return the rows that show the columns: those with at least the typical number of phrases, or else those that do
    not run across; all rows if there are none."""
    most = sorted(map(len, rows))[len(rows) // 2]
    full = [row for row in rows if len(row) >= most]
    if most > 1 and len(full) >= max(3, 0.6 * sum(len(row) > 1 for row in rows)):
        return full
    return [row for row in rows if len(row) > 1 or row[0].right - row[0].left <= 0.5 * width] or rows


def _whole(words: Sequence[Span]) -> Span:
    return words[0]._replace(right=max(span.right for span in words))


def _phrases(line: Line, gap: float) -> list[list[Span]]:
    """Group the words of the line: words with a usual space between them form a phrase."""
    phrases: list[list[Span]] = []
    for span in spans_of(line):
        before = phrases[-1][-1] if phrases else None
        mono = before is not None and before.style.mono and span.style.mono
        least = max(gap, _MONO_WORD_GAP) if mono else gap
        if before and not mono and _are_numbers(before.text, span.text):
            least = min(gap, _NUMBER_GAP)
        if before and span.left - before.right < least * line.size:
            phrases[-1].append(span)
        else:
            phrases.append([span])
    return phrases


def _are_numbers(first: str, second: str) -> bool:
    """Whether both are numbers, and not the parts of one with a space after its thousands."""
    return is_number(first) and is_number(second) and not (_THOUSANDS.match(first) and _GROUP.match(second))


def place(cells: Sequence[Line], borders: Sequence[Border], gap: float = WORD_GAP) -> list[Placed]:
    """Return the cells of one row: the lines cut into phrases, each in the columns where it stands. Words with usual
    spaces that cross a border stay together, in a cell that spans columns."""
    cells_placed: list[Placed] = []
    for line in sorted(cells, key=lambda line: line.left):
        phrases = _phrases(line, gap)
        for part in [sub_line(line, spans) for spans in phrases] if len(phrases) > 1 else [line]:
            first, last = _columns(part, borders)
            before = cells_placed[-1] if cells_placed else None
            if before is not None and first <= before.last:
                cells_placed[-1] = Placed(before.first, max(last, before.last), [*before.lines, part])
            else:
                cells_placed.append(Placed(first, last, [part]))
    return cells_placed


def _columns(line: Line, borders: Sequence[Border]) -> tuple[int, int]:
    """Return the line's first and last column; a line that ends in the gap before a column is not in that column."""
    width = line.right - line.left
    slack = max(0.1 * line.size, min(0.12 * width, 1.5 * line.size))
    middle = (line.left + line.right) / 2
    first = sum(line.left >= border.low - slack and middle > border.middle for border in borders)
    last = sum(line.right > border.high + slack for border in borders)
    return first, max(first, last)

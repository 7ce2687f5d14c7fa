"""Where the columns of a table are, told by its text: borders are stretches of x where its rows have no word."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pipeline.reading.layout.cells import spans_of, sub_line, text_size
from pipeline.reading.layout.model import Line, Span

_MAX_COLUMNS = 60
WORD_GAP = 0.6
"""The space between two words, in text sizes, from which on they may be in two columns."""

_LEAST_GAP = 0.48
_WIDER = 1.4
_MAX_SPACE = 0.75  # text sizes
_MONO_WORD_GAP = 0.8  # A space is as wide as any letter.
_BEFORE = {"$", "€", "£", "¥", "₩", "US$", "USD", "EUR", "CHF", "Rs", "₹"}
_AFTER = {"%", ")", ")%", "€"}
_FEW_ROWS = 3
_MIN_GAPS = (1.4, 0.9)  # text sizes, between columns of few and of more rows


class Border(NamedTuple):
    """The gap between two columns; of no width where a rule is."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


class Placed(NamedTuple):
    """A cell's lines, in the columns from `first` to `last`."""

    first: int
    last: int
    lines: list[Line]


def ruled_gap(lines: Sequence[Line]) -> float:
    """The space between two words, in text sizes, from which on they may be in two columns if rules say that there are
    some: wider than the spaces of the text, before words that no cell begins with."""
    gaps = [
        (word.left - before.right) / line.size
        for line in lines
        for before, word in pairwise(spans_of(line))
        if word.text[:1].islower() and before.text[-1:].isalpha() and not word.style.mono
    ]
    usual = [gap for gap in gaps if gap < _MAX_SPACE]
    return max(_LEAST_GAP, _WIDER * median(usual)) if usual else _LEAST_GAP


def borders_of(rows: Sequence[Sequence[Line]], gap: float | None = None) -> list[Border]:
    """The stretches of x where the rows have no word; rows that run across are left out.

    `gap`: how wide they are at least, in text sizes, where rules say that this is a table."""
    lines = [line for row in rows for line in row]
    size = text_size(lines)
    width = max(line.right for line in lines) - min(line.left for line in lines)
    if width <= 0:
        return []
    apart = WORD_GAP if gap is None else gap
    phrases = _telling([[_whole(part) for line in row for part in _phrases(line, apart)] for row in rows], width)
    few, many = _MIN_GAPS if gap is None else (1.6 * gap, gap)
    least = (many if len(phrases) > _FEW_ROWS else few) * size
    spans = [span for row in phrases for span in row]
    return [border for border in _emptiest(spans, len(phrases) // 12) if border.high - border.low >= least][
        :_MAX_COLUMNS
    ]


def _emptiest(spans: Sequence[Span], allowed: int) -> list[Border]:
    """The stretches between the spans that at most `allowed` of them cover."""
    ends = [sorted((span.left, span.right)) for span in spans]
    changes = sorted([(left, 0, 1) for left, _ in ends] + [(right, 1, -1) for _, right in ends])
    found: list[Border] = []
    level, low = 0, None
    for x, _, change in changes:
        level += change
        if level <= allowed and low is None:
            low = x
        elif level > allowed and low is not None:
            if low > changes[0][0]:
                found.append(Border(low, x))
            low = None
    return found


def without_symbols(rows: Sequence[Sequence[Placed]], borders: Sequence[Border]) -> list[Border]:
    """The borders but those between an amount and its sign, which stands in a column of its own."""
    texts: dict[int, set[str]] = {}
    for row in rows:
        for cell in row:
            if cell.first == cell.last:
                texts.setdefault(cell.first, set()).add("".join(line.text for line in cell.lines).strip())
    before = {column for column, found in texts.items() if found <= _BEFORE}
    after = {column for column, found in texts.items() if found <= _AFTER}
    return [
        border for index, border in enumerate(borders) if not (index in before or (index + 1 in after and index > 0))
    ]


def _telling(rows: list[list[Span]], width: float) -> list[list[Span]]:
    """The rows that show where columns are: those with as many pieces as most, without those that run across."""
    most = sorted(map(len, rows))[len(rows) // 2]
    full = [row for row in rows if len(row) >= most]
    if most > 1 and len(full) >= max(3, 0.6 * sum(len(row) > 1 for row in rows)):
        return full
    return [row for row in rows if len(row) > 1 or row[0].right - row[0].left <= 0.5 * width] or rows


def _whole(words: Sequence[Span]) -> Span:
    return words[0]._replace(right=max(span.right for span in words))


def _phrases(line: Line, gap: float) -> list[list[Span]]:
    """The words of the line, those that follow each other with a usual space together."""
    found: list[list[Span]] = []
    for span in spans_of(line):
        before = found[-1][-1] if found else None
        mono = before is not None and before.style.mono and span.style.mono
        if before and span.left - before.right < (max(gap, _MONO_WORD_GAP) if mono else gap) * line.size:
            found[-1].append(span)
        else:
            found.append([span])
    return found


def place(cells: Sequence[Line], borders: Sequence[Border], gap: float = WORD_GAP) -> list[Placed]:
    """The lines of one row in their columns. Words with usual spaces between them that cross a border stay together,
    in a cell that spans columns."""
    found: list[Placed] = []
    for line in sorted(cells, key=lambda line: line.left):
        phrases = _phrases(line, gap)
        for part in [sub_line(line, spans) for spans in phrases] if len(phrases) > 1 else [line]:
            first, last = _columns(part, borders)
            before = found[-1] if found else None
            if before is not None and first <= before.last:
                found[-1] = Placed(before.first, max(last, before.last), [*before.lines, part])
            else:
                found.append(Placed(first, last, [part]))
    return found


def _columns(line: Line, borders: Sequence[Border]) -> tuple[int, int]:
    """The first and the last column of the line; a line that ends in the gap before a column is not in it."""
    width = line.right - line.left
    slack = max(0.1 * line.size, min(0.12 * width, 1.5 * line.size))
    middle = (line.left + line.right) / 2
    first = sum(line.left >= border.low - slack and middle > border.middle for border in borders)
    last = sum(line.right > border.high + slack for border in borders)
    return first, max(first, last)

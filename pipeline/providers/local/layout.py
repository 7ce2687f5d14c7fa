"""From lines on a page to Markdown paragraphs, in small pure steps over plain data.

    lines -> reading_order (columns) -> rows (lines side by side) -> paragraphs -> markdown

Coordinates grow to the right and downwards, in any one unit (points for text layers, pixels for OCR): every threshold
is relative to the size of the text. No step drops text. A step that knows more (headings, lists, tables) belongs
between `paragraphs` and `markdown`: a `Row` still has its cells and a `Paragraph` its rows.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import NamedTuple

SOFT_HYPHEN = "\u00ad"
"""Ends the text of a line whose last word goes on in the next one, where the source says so."""

CELL_GAP = 1.5
"""Space between two pieces of one row, in text sizes, from which they are cells and not words of one sentence."""

_MIN_GUTTER = 0.6  # text sizes
_MIN_COLUMN_LINES = 4
_MIN_BAND_LINES = 4  # lines on a side, below which what stands between two wide lines is no columns
_MIN_COLUMN_SHARE = 0.2  # of the region's width
_MIN_PROSE_CHARS = 15  # mean characters of a line, below which a side is a table's column and not text
_MAX_ALIGNED = 0.6  # share of level lines, from which two sides are the cells of a table
_MAX_CROSSING = 0.35  # share of lines that may run across a gutter (titles, wide figures' captions)
_FAR_AWAY = 1e7  # in any unit: damaged files place text anywhere
_BINS = 128
_MAX_DEPTH = 4

_CLOSING = tuple(",.;:!?)]}%”’")
_ITEM = re.compile(r"(?:[•▪‣◦●○■□◆✓*–—-]|\(?\d{1,3}[.)]|\(?[a-zA-Z][.)])\s+\S")
_SENTENCE_END = re.compile(r"[.!?:;。！？：；…][\"'”’)\]]*$")
_CJK = re.compile(r"[\u2e80-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003134f]")


class Line(NamedTuple):
    """A piece of text on one baseline, with its box; `size` is its font size in the unit of the box."""

    text: str
    left: float
    top: float
    right: float
    bottom: float
    size: float


class Row(NamedTuple):
    """Lines that stand side by side, from left to right."""

    cells: tuple[Line, ...]

    @property
    def text(self) -> str:
        text = self.cells[0].text
        for before, cell in pairwise(self.cells):
            touching = cell.left - before.right < 0.3 * cell.size and cell.text.startswith(_CLOSING)
            text += cell.text if touching else f" {cell.text}"
        return text

    @property
    def left(self) -> float:
        return min(cell.left for cell in self.cells)

    @property
    def right(self) -> float:
        return max(cell.right for cell in self.cells)

    @property
    def top(self) -> float:
        return self._main.top

    @property
    def bottom(self) -> float:
        return self._main.bottom

    @property
    def size(self) -> float:
        return self._main.size

    @property
    def is_tabular(self) -> bool:
        """Whether its pieces stand so far apart that they read as cells."""
        return any(b.left - a.right > CELL_GAP * max(a.size, b.size) for a, b in pairwise(self.cells))

    @property
    def _main(self) -> Line:
        return max(self.cells, key=lambda cell: len(cell.text))


class Paragraph(NamedTuple):
    """Rows that belong together."""

    rows: tuple[Row, ...]

    @property
    def text(self) -> str:
        """The rows as running text; rows of cells keep a line each."""
        if len(self.rows) > 1 and self.rows[0].is_tabular:
            return "\n".join(clean(row.text) for row in self.rows)
        return join_lines(row.text for row in self.rows)


def to_markdown(lines: Iterable[Line]) -> str:
    """Markdown of a page's lines, in any order: paragraphs in reading order, blank lines between them."""
    found: list[Paragraph] = []
    level, others = split_level(line for line in lines if line.text.strip())
    for block in reading_order(level):
        found = join_across_blocks(found, paragraphs(rows(block)))
    # Text that runs up a margin would cut through the lines beside it: it comes last.
    return markdown(found + [Paragraph((Row((line,)),)) for line in others])


def split_level(lines: Iterable[Line]) -> tuple[list[Line], list[Line]]:
    """(lines that run across the page, lines that run up or down it or have no place on it)."""
    level: list[Line] = []
    others: list[Line] = []
    for line in lines:
        placed = all(abs(value) < _FAR_AWAY for value in line[1:])  # False for NaN too
        (level if placed and not _is_upright(line) else others).append(line)
    return level, others


def markdown(found: Sequence[Paragraph]) -> str:
    """The paragraphs as Markdown text, without a newline at its end."""
    return "\n\n".join(text for text in (paragraph.text for paragraph in found) if text)


def reading_order(lines: Sequence[Line], depth: int = 0) -> list[list[Line]]:
    """Blocks of lines in the order they are read: column after column between the lines that span all columns."""
    gutter = find_gutter(lines) if depth < _MAX_DEPTH else None
    if gutter is None:
        return [list(lines)] if lines else []
    blocks: list[list[Line]] = []
    spanning: list[Line] = []
    for left, right, closing in _bands(lines, gutter):
        if max(len(left), len(right)) < _MIN_BAND_LINES and left and right:
            # A heading's or table's pieces between two wide lines: they are read across.
            spanning += left + right
        elif left or right:
            blocks += [spanning] if spanning else []
            blocks += reading_order(left, depth + 1) + reading_order(right, depth + 1)
            spanning = []
        spanning += closing
    return [*blocks, spanning] if spanning else blocks


def _bands(lines: Sequence[Line], gutter: float) -> Iterator[tuple[list[Line], list[Line], list[Line]]]:
    """From top to bottom: lines left of the gutter, lines right of it, and the line across it that ends the band."""
    left: list[Line] = []
    right: list[Line] = []
    for line in sorted(lines, key=_vertical_middle):
        if line.left < gutter < line.right:
            yield left, right, [line]
            left, right = [], []
        else:
            (left if line.right <= gutter else right).append(line)
    yield left, right, []


def find_gutter(lines: Sequence[Line]) -> float | None:
    """The x between two columns of running text; None where there are none (one column, or a table's cells)."""
    if len(lines) < 2 * _MIN_COLUMN_LINES:
        return None
    start, end = min(line.left for line in lines), max(line.right for line in lines)
    size = median(line.size for line in lines)
    x = _middle_of_emptiest_run(lines, start, end, _MIN_GUTTER * size)
    if x is None:
        return None
    left = [line for line in lines if line.right <= x]
    right = [line for line in lines if line.left >= x]
    if min(len(left), len(right)) < _MIN_COLUMN_LINES:
        return None
    prose = _is_prose(left, end - start) and _is_prose(right, end - start)
    return x if prose or _aligned_share(left, right) < _MAX_ALIGNED else None


def _middle_of_emptiest_run(lines: Sequence[Line], start: float, end: float, least_width: float) -> float | None:
    """The middle of the widest stretch of x, away from the margins, that as few lines as possible cover."""
    step = (end - start) / _BINS
    if step <= 0:
        return None
    cover = _cover(lines, start, step)
    margin = int(_BINS * _MIN_COLUMN_SHARE)
    middle = cover[margin : _BINS - margin]
    for most in sorted(level for level in set(middle) if level <= _MAX_CROSSING * len(lines)):
        run = max(_runs(middle, most), key=lambda run: run[1] - run[0])
        if (run[1] - run[0]) * step >= least_width:
            return start + (margin + (run[0] + run[1]) / 2) * step
    return None


def _cover(lines: Sequence[Line], start: float, step: float) -> list[int]:
    """How many lines stand over each step of the way across."""
    changes = [0] * (_BINS + 1)
    for line in lines:
        first, last = sorted((line.left, line.right))
        changes[min(_BINS, int((first - start) / step))] += 1
        changes[min(_BINS, int((last - start) / step) + 1)] -= 1
    return list(accumulate(changes[:_BINS]))


def _runs(cover: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """(first, end) of stretches where at most `most` lines stand."""
    first = None
    for index, level in enumerate((*cover, most + 1)):
        if level > most and first is not None:
            yield first, index
            first = None
        elif level <= most and first is None:
            first = index


def _is_prose(lines: Sequence[Line], region_width: float) -> bool:
    width = max(line.right for line in lines) - min(line.left for line in lines)
    characters = sum(len(line.text) for line in lines) / len(lines)
    return width >= _MIN_COLUMN_SHARE * region_width and characters >= _MIN_PROSE_CHARS


def _aligned_share(left: Sequence[Line], right: Sequence[Line]) -> float:
    """Share of the side with fewer lines that stand level with a line of the other: nearly all in a table's rows."""
    fewer, more = sorted((left, right), key=len)
    middles = sorted(_vertical_middle(line) for line in more)
    level = 0
    for line in fewer:
        tolerance = 0.25 * line.size
        index = bisect_left(middles, _vertical_middle(line) - tolerance)
        level += index < len(middles) and middles[index] <= _vertical_middle(line) + tolerance
    return level / len(fewer)


def rows(lines: Iterable[Line]) -> list[Row]:
    """Lines that stand side by side put together, from top to bottom."""
    found: list[list[Line]] = []
    for line in sorted(lines, key=lambda line: (line.top, line.left)):
        row = next((row for row in reversed(found[-3:]) if _fits_row(row, line)), None)
        if row is None:
            found.append([line])
        else:
            row.append(line)
    return [Row(tuple(sorted(cells, key=lambda cell: cell.left))) for cells in found]


def _fits_row(row: Sequence[Line], line: Line) -> bool:
    # Only the tallest counts: by chaining from neighbour to neighbour a row would grow down the page.
    tallest = max(row, key=_height)
    smaller = min(_height(tallest), _height(line))
    overlap = min(tallest.bottom, line.bottom) - max(tallest.top, line.top)
    if smaller <= 0 or overlap < 0.5 * smaller:
        return False
    return overlap > 0.9 * smaller or not any(_above_each_other(cell, line) for cell in row)


def _above_each_other(a: Line, b: Line) -> bool:
    return min(a.right, b.right) - max(a.left, b.left) > 0.3 * min(a.right - a.left, b.right - b.left)


def _height(line: Line) -> float:
    return line.bottom - line.top


def _is_upright(line: Line) -> bool:
    """Whether the text runs up or down the page."""
    return len(line.text) > 1 and _height(line) > 2.5 * line.size and _height(line) > (line.right - line.left)


def _vertical_middle(line: Line) -> float:
    return (line.top + line.bottom) / 2


def paragraphs(found: Sequence[Row]) -> list[Paragraph]:
    """The rows of one block, from top to bottom, cut where a new paragraph starts."""
    if not found:
        return []
    block = _measure(found)
    groups = [[found[0]]]
    for before, row in pairwise(found):
        if _starts_paragraph(before, row, block):
            groups.append([row])
        else:
            groups[-1].append(row)
    return [Paragraph(tuple(group)) for group in groups]


class _Block(NamedTuple):
    """What is typical of a block of rows. `hanging`: its paragraphs start further left than they go on."""

    left: float
    right: float
    pitch: float
    hanging: bool

    def indents(self, row: Row) -> bool:
        return 0.8 * row.size < row.left - self.left < 4 * row.size


def _measure(found: Sequence[Row]) -> _Block:
    left, right = min(row.left for row in found), max(row.right for row in found)
    flush = _Block(left, right, _typical_pitch(found), hanging=False)
    after_indent = [flush.indents(row) for before, row in pairwise(found) if flush.indents(before)]
    return flush._replace(hanging=2 * sum(after_indent) > len(after_indent))


def _typical_pitch(found: Sequence[Row]) -> float:
    """Distance from one line to the next inside a paragraph."""
    pitches = [b.bottom - a.bottom for a, b in pairwise(found) if b.bottom > a.bottom]
    size = median(row.size for row in found)
    return min(median(pitches), 2.5 * size) if pitches else 1.2 * size


def _starts_paragraph(before: Row, row: Row, block: _Block) -> bool:
    if row.is_tabular != before.is_tabular:
        return True
    if before.text.endswith(SOFT_HYPHEN):
        return False
    if row.bottom - before.bottom > 1.35 * block.pitch or not 0.8 < row.size / max(before.size, 1e-9) < 1.25:
        return True
    if row.is_tabular:
        return False
    first, second = (row, before) if block.hanging else (before, row)
    steps_in = block.indents(second) and first.left - block.left < 0.5 * first.size
    return steps_in or bool(_ITEM.match(row.text)) or _broken_on_purpose(before, row, block)


def _broken_on_purpose(before: Row, row: Row, block: _Block) -> bool:
    """Whether the next word had room on the line before, so that the line did not end for want of space."""
    word = row.text.split(maxsplit=1)[0] if row.text.strip() else ""
    word_width = len(word) / max(len(row.text), 1) * (row.right - row.left)
    if block.right - before.right <= word_width + 0.8 * row.size:
        return False
    very_short = before.right - block.left < 0.6 * (block.right - block.left)
    return bool(_SENTENCE_END.search(before.text.rstrip())) or (very_short and not word[:1].islower())


def join_across_blocks(earlier: list[Paragraph], later: list[Paragraph]) -> list[Paragraph]:
    """The paragraphs of two blocks that follow each other; one that goes on in the next block stays whole."""
    if not earlier or not later:
        return earlier + later
    last, first = earlier[-1].rows[-1], later[0].rows[0]
    alike = 0.8 < first.size / max(last.size, 1e-9) < 1.25 and not last.is_tabular and not first.is_tabular
    goes_on = last.text.endswith(SOFT_HYPHEN) or re.search(r"[^\W\d_]-?$|,$", last.text.rstrip())
    if alike and goes_on and first.text[:1].islower():
        return [*earlier[:-1], Paragraph(earlier[-1].rows + later[0].rows), *later[1:]]
    return earlier + later


def join_lines(texts: Iterable[str]) -> str:
    """Lines of one paragraph as running text: hyphenated words joined, no spaces between CJK characters."""
    joined = ""
    for text in filter(None, (_folded(text) for text in texts)):
        joined = _join_two(joined, text) if joined else text
    return clean(joined)


def _join_two(first: str, second: str) -> str:
    hyphenated = first.endswith((SOFT_HYPHEN, "-", "\u2010"))
    if hyphenated and first[-2:-1].isalpha() and second[:1].islower():
        # `state-of-the-` keeps its hyphen: the words of a compound are not parts of one.
        return first + second if "-" in first.rsplit(None, 1)[-1][:-1] else first[:-1] + second
    if hyphenated and not first[-2:-1].isspace():
        return first + second
    if _CJK.match(first[-1]) and _CJK.match(second):
        return first + second
    return f"{first} {second}"


def _folded(text: str) -> str:
    return " ".join(text.split())


def clean(text: str) -> str:
    """The text with single spaces, and with hyphens that a reader sees."""
    return _folded(text).replace(SOFT_HYPHEN, "-")

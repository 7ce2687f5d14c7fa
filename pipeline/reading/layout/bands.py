"""Running heads: rows at one height on many pages that count the pages or share a look, whatever their words."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pipeline.reading.layout.model import Line
from pipeline.reading.layout.rows import Row, rows

ZONE = 0.2
"""The share of the page's height, at the top and at the bottom, that may hold running heads."""

_LINES = 8  # inspected from each edge
_ROWS = 2
_STEPS = 100  # distinct heights on a page
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_NUMBER = re.compile(r"\W*(?:(?P<digits>\d{1,4})|(?P<roman>[ivxlc]{1,7}))\W*", re.IGNORECASE)
_MAX_CHARS = 120
_MAX_SEEN = 2_000
_NEAR_PAGES = 2
_FEW_PAGES = 4
_COUNTED, _REPEATED = 0.3, 0.5  # of the pages with a row in the band


class Band(NamedTuple):
    """A row's place and `look` (`i`: italics, `c`: capitals); the `numbers` at its ends, and its other `words`."""

    place: str
    look: str
    numbers: tuple[int, ...]
    words: str = ""


def of_page(lines: Iterable[Line], height: float) -> tuple[Band, ...]:
    """Return the place, style, numbers and words of up to two rows at the top and two at the bottom of a page of this
    height: its possible running heads."""
    return tuple(band for row in _outer(lines, height) if (band := of_row(row, height)))


def of_row(row: Row, height: float) -> Band | None:
    """Return the row's place, style, numbers and other words, to compare with rows of other pages; None if it is not
    near an edge of the page, or is too long for a running head."""
    if not math.isfinite(height) or height <= 0 or len(row.text) > _MAX_CHARS:
        return None
    zone = "t" if row.bottom < ZONE * height else "b" if row.top > (1 - ZONE) * height else ""
    if not zone:
        return None
    size = round(row.size) if math.isfinite(row.size) else 0
    share = min(max(row.bottom / height, 0.0), 1.0)
    words = " ".join(word for word in row.text.casefold().split() if not _value(word))
    return Band(f"{zone}{round(_STEPS * share)}:{size}", look(row), numbers(row), words)


def numbers(row: Row) -> tuple[int, ...]:
    """Return the numbers, in digits or Roman, among the row's first and last word, ascending and without 0; empty
    without any."""
    words = row.text.split()
    values = {_value(word) for word in (words[0], words[-1])} if words else set()
    return tuple(sorted(values - {0}))


def holds(bands: frozenset[str], band: Band) -> bool:
    """Whether the row is at the place, give or take a rounding error, of a running head with its look or with a page
    number. `bands`: the keys of `Census.furniture`."""
    height, size = band.place[1:].split(":")
    marks = ("#" if band.numbers else "", band.look)
    near = (f"{band.place[0]}{int(height) + far}:{size}" for far in (-1, 0, 1))
    return any(f"{place}{mark}" in bands for place in near for mark in marks if mark)


class Census:
    """Counts the bands of a document page by page, in bounded memory."""

    def __init__(self) -> None:
        self._seen: dict[str, _BandCount] = {}

    def add(self, page: int, page_bands: Iterable[Band]) -> None:
        for band in page_bands:
            for mark in ("#", band.look):
                key = f"{band.place}{mark}"
                if mark and (key in self._seen or len(self._seen) < _MAX_SEEN):
                    self._seen.setdefault(key, _BandCount()).add(page, band)

    def furniture(self, pages: int) -> frozenset[str]:
        """Return the keys of the document's running heads: place and look, or place and `#` for a row with the page's
        number. `pages`: how many pages the document has.

        Titles of recipes or poems share height and look too, but differ in words on each page. In a long document, two
        numbers in the text's first lines may follow each other by chance.
        """
        least = 1 if pages <= _FEW_PAGES else 2
        numbered = {
            key
            for key, seen in self._seen.items()
            if key[-1] == "#" and seen.counted >= max(least, _COUNTED * (seen.pages - 1))
        }
        alike = {
            key
            for key, seen in self._seen.items()
            if key[-1] != "#" and key[0] == "t" and seen.streak > 2 and seen.repeats >= _REPEATED * (seen.pages - 1)
        }
        return frozenset(numbered | alike)


class _BandCount:
    """`counted`: how often a number grew by one from one page to the next; `streak`: the most pages near each other;
    `repeats`: how often the words equal those of one of the last two pages."""

    __slots__ = ("counted", "last", "now", "numbers", "pages", "repeats", "streak", "words")

    def __init__(self) -> None:
        self.last, self.numbers, self.words = -10, frozenset[int](), ("", "")
        self.pages, self.counted, self.repeats, self.now, self.streak = 0, 0, 0, 0, 0

    def add(self, page: int, band: Band) -> None:
        far = page - self.last
        if far == 0:
            return
        near = 0 < far <= _NEAR_PAGES
        self.now = self.now + 1 if near else 1
        self.streak = max(self.streak, self.now)
        self.counted += near and not self.numbers.isdisjoint(n - far for n in band.numbers)
        self.repeats += bool(band.words) and band.words in self.words
        self.last, self.numbers, self.words = page, frozenset(band.numbers), (self.words[1], band.words)
        self.pages += 1


def _outer(lines: Iterable[Line], height: float) -> Iterator[Row]:
    """Yield up to two rows from each edge."""
    level = [line for line in lines if line.angle == 0 and math.isfinite(line.top + line.bottom)]
    level.sort(key=lambda line: line.top)
    yield from rows(line for line in level[:_LINES] if line.bottom < ZONE * height)[:_ROWS]
    yield from rows(line for line in level[-_LINES:] if line.top > (1 - ZONE) * height)[-_ROWS:]


def look(row: Row) -> str:
    """Return `i` for a row in italics, `c` for capitals or small capitals, both or neither."""
    styles = [token.style for token in row.tokens if any(map(str.isalpha, token.text))]
    letters = [letter for letter in row.text if letter.isalpha()]
    italic = bool(styles) and all(style.italic for style in styles)
    capitals = len(letters) > 3 and (all(map(str.isupper, letters)) or _is_small_caps(styles[0].font))
    return f"{'i' if italic else ''}{'c' if capitals else ''}"


def _is_small_caps(font: str) -> bool:
    return bool(re.search(r"csc|caps", font, re.IGNORECASE))


def _value(word: str) -> int:
    """Return the word as a number, in digits or Roman; 0 if it is not one."""
    match = _NUMBER.fullmatch(word)
    if not match:
        return 0
    if match["digits"]:
        return int(match["digits"])
    # In any case: the Turkish "İ" matches "i", and becomes "i" and a dot.
    values = [_ROMAN[letter] for letter in match["roman"].casefold() if letter in _ROMAN]
    return sum(
        -value if any(value < later for later in values[place + 1 :]) else value for place, value in enumerate(values)
    )

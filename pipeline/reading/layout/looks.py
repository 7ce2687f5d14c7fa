"""Headings in the size of the text: lines that stand alone in another font, in capitals or with numbers."""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import add
from typing import NamedTuple

from pipeline.reading.layout.model import Line
from pipeline.reading.layout.text import number_depth

_SPACE = 0.5  # text sizes above a heading
_MAX_CHARS = 80
_BRIEF = 45  # average characters of headings without numbers, at most
_LETTERS = 0.6
_MAX_LOOKS = 100
_MAX_SEEN = 1_000
_FEW = 3
_SHARE = 0.05  # of a document's characters, at most
_CAPITALS_SIZE, _BOLD_SIZE, _SIZE, _LARGER = 0.78, 0.85, 0.95, 1.03  # of the running text


class LookFacts(NamedTuple):
    """Counts for a look: its lines, their characters, lines `alone` like a heading, those of them with a number, and
    the `parts` of all numbers."""

    lines: int = 0
    characters: int = 0
    alone: int = 0
    numbered: int = 0
    parts: int = 0

    def plus(self, other: "LookFacts") -> "LookFacts":
        return LookFacts(*map(add, self, other))


def look(line: Line) -> str:
    """Return the line's look as a key: size to half a unit, `b` bold, `c` capitals, `i` italics, font; empty if mixed
    or mono."""
    styles = {id(span.style): span.style for span in line.spans}
    if len(styles) > 1:
        styles = {id(span.style): span.style for span in line.spans if any(map(str.isalpha, span.text))}
    elif not any(map(str.isalpha, line.text)):
        return ""
    if not styles or not math.isfinite(line.size) or any(style.mono for style in styles.values()):
        return ""
    fonts = {(style.font, style.italic, style.bold) for style in styles.values()}
    if len(fonts) > 1:
        return ""
    capitals = line.text.isupper() and sum(map(str.isalpha, line.text)) > 3
    return _key(line.size, *fonts.pop(), capitals=capitals)


@lru_cache(maxsize=1_000)
def _key(size: float, font: str, italic: bool, bold: bool, *, capitals: bool) -> str:
    half = round(2 * min(max(size, 0.0), 10_000.0)) / 2
    return f"{half:g}{'b' if bold else ''}{'c' if capitals else ''}{'i' if italic else ''}@{font.rstrip('0123456789')}"


def size_of(key: str) -> float:
    return float(key.split("@", maxsplit=1)[0].rstrip("bci"))


def of_page(lines: Iterable[Line]) -> dict[str, LookFacts]:
    """Return, by look, how many lines and characters have it, and how many lines stand alone like a heading. The lines
    must be in the order of the source."""
    counts: dict[str, list[int]] = {}
    level = [line for line in lines if line.angle == 0]
    paged = {foot_of(line) for line in level if line.text.isdecimal()}
    for index, line in enumerate(level):
        key = look(line) if foot_of(line) not in paged else ""
        if not key or (key not in counts and len(counts) >= _MAX_LOOKS):
            continue
        before = level[index - 1] if index else None
        after = level[index + 1] if index + 1 < len(level) else None
        alone = _is_brief(line.text) and not _is_beside(line, before) and not _is_beside(line, after)
        alone = alone and (before is None or not 0 <= line.top - before.bottom < _SPACE * line.size)
        depth = number_depth(line.text) if alone else 0
        facts = (1, len(line.text), alone, depth > 0, depth)
        counts[key] = list(map(add, counts.get(key, (0,) * len(facts)), facts))
    return {key: LookFacts(*facts) for key, facts in counts.items()}


def foot_of(line: Line) -> int:
    """Return the line's rounded bottom, to compare with lines beside it; -1 without a place."""
    return round(line.bottom) if math.isfinite(line.bottom) else -1


class Looks:
    """Sums the looks of a document page by page."""

    def __init__(self) -> None:
        self._facts: dict[str, LookFacts] = {}

    def add(self, page: Mapping[str, LookFacts]) -> None:
        for key, facts in page.items():
            if key in self._facts or len(self._facts) < _MAX_SEEN:
                self._facts[key] = self._facts.get(key, LookFacts()).plus(facts)

    def headings(self, body: float) -> list[str]:
        """Return the looks that are those of headings although bold type or size does not show it. `body`: the size of
        the document's text."""
        total = sum(facts.characters for facts in self._facts.values())
        fonts: dict[str, int] = {}
        for key, facts in self._facts.items():
            font = key.partition("@")[2]
            fonts[font] = fonts.get(font, 0) + facts.characters
        own = max(fonts, key=lambda font: fonts[font], default="")
        return [key for key, facts in self._facts.items() if _is_heading(key, facts, body, own, total)]

    def depths(self, keys: Iterable[str]) -> dict[str, int]:
        """Return the usual number of parts in each look's numbers; 0 if most of its lines have no number."""
        facts = {key: self._facts[key] for key in keys}
        return {key: round(f.parts / f.numbered) if 2 * f.numbered > f.lines else 0 for key, f in facts.items()}


def _is_heading(key: str, facts: LookFacts, body: float, own: str, total: int) -> bool:
    flags, _, font = key.partition("@")  # fonts for vertical text have names that begin with another one
    size = size_of(key)
    if facts.alone < 0.8 * facts.lines or facts.characters > max(_SHARE * total, 200):
        return False
    if "b" in flags and size >= _SIZE * body:
        return False  # The style alone shows such headings.
    least = _CAPITALS_SIZE if "c" in flags else _BOLD_SIZE if "b" in flags else _SIZE
    if size < least * body:
        return False
    distinct = "c" in flags or "b" in flags or font != own
    if facts.numbered >= 0.6 * facts.lines:
        return distinct or "i" in flags or size >= _LARGER * body
    often = facts.lines >= _FEW and facts.characters <= _BRIEF * facts.lines
    return often and (facts.alone == facts.lines if "i" in flags else distinct)


def _is_brief(text: str) -> bool:
    """Whether a line could be a heading: short, mostly letters, begun like one, and not ended like a sentence."""
    text = text.strip()
    starts = text[:1].isupper() or (text[:1].isdecimal() and number_depth(text) > 0)
    if not starts or len(text) > _MAX_CHARS or text[-1] in ".,;:":
        return False
    words = text.lstrip("0123456789. ")
    return sum(map(str.isalpha, words)) >= max(4, _LETTERS * len(words))


def _is_beside(line: Line, other: Line | None) -> bool:
    if other is None:
        return False
    overlap = min(line.bottom, other.bottom) - max(line.top, other.top)
    return overlap > 0.5 * min(line.bottom - line.top, other.bottom - other.top)

"""The profile of a document: the size of its text, the levels of its headings, and the lines that its pages repeat.

One pass over all pages collects a few facts from each. The resulting profile is small, and makes pages that are
converted one by one agree.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from pipeline.reading.layout.bands import Band, Census, of_page
from pipeline.reading.layout.compounds import Vocabulary, Words, words
from pipeline.reading.layout.looks import LookFacts, Looks, foot_of, size_of
from pipeline.reading.layout.looks import of_page as looks_of_page
from pipeline.reading.layout.model import Line, PageContent
from pipeline.reading.layout.text import number_depth

EDGE = 0.12
"""Share of the page's height, at the top and at the bottom, that holds headers and footers."""

RECOGNISED_LARGER = 1.35
"""The least size of a heading in recognised text, in sizes of the text around it."""

_MAX_EDGE_LINES = 8
_MAX_STYLES = 200
_MAX_REPEATED = 500
_MAX_LEVELS = 6
_MAX_DEPTH = 5
_NUMBERED_SHARE = 0.3
_LARGER = 1.12
_LONG = 70
_MAX_SHARE = 0.2
_FEW_LINES = 8
_FEW_NAMES, _MANY_BOLD = 4, 8  # stretches of a style
_NAME_SIZE = 1.3  # of the running text, at most
_MAX_STRETCH = 2.5  # A style with more lines in a row, on average, is text and not a heading.
_NEAR_PAGES = 2
_SHORT_DOCUMENT = 6
_INITIALS = 4  # the square of their number: an initial is not a heading
_NEXT, _NEXT_MEASURED = 0.8, 0.88
"""The size of a recognised heading of the next level, at most, in sizes of the level above."""
_SETS = ("bands", "repeated", "running", "written")


class StyleFacts(NamedTuple):
    """The amount of text in one style. `stretches`: how often the style begins after another; running text has many
    lines in each stretch. `depths`: how many lines begin with a number of one part, of two, and so on."""

    lines: int
    characters: int
    stretches: int
    depths: tuple[int, ...]


@dataclass(frozen=True)
class PageFacts:
    """The facts of one page for the profile. `edges`: the keys of the lines at the top and the bottom; `words`:
    evidence about hyphens."""

    styles: dict[str, StyleFacts]
    edges: frozenset[str]
    words: Words = field(default_factory=Words)
    bands: tuple[Band, ...] = ()
    looks: dict[str, LookFacts] = field(default_factory=dict)


@dataclass(frozen=True)
class DocumentProfile:
    """The profile saved with the document. `headings` maps styles to levels, `looks` the looks of headings of the
    text's size; `depths` maps both to the depth of most of their numbers. `repeated`: edge lines of neighbouring pages;
    `running`: edge lines of half of all pages; `bands`: the places of running heads; `written`: compounds, and words
    that are not compounds although a line's end cuts them like compounds."""

    pages: int = 0
    body_size: float = 10.0
    body_bold: bool = False
    body_mono: bool = False
    headings: dict[str, int] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    repeated: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    bands: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as a dict, ready for JSON."""
        return asdict(self) | {name: sorted(getattr(self, name)) for name in _SETS}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "DocumentProfile":
        """Restore a profile from the result of `to_dict`; ignore unknown keys."""
        known = {name: saved[name] for name in cls.__dataclass_fields__ if name in saved}
        return cls(**known | {name: frozenset(known.get(name, ())) for name in _SETS})


@lru_cache(maxsize=1_000)
def style_key(size: float, *, bold: bool, mono: bool = False) -> str:
    """Return the key of a style: its size to half a unit, `b` for bold, `m` for monospaced."""
    half = round(2 * min(max(size, 0.0), 10_000.0)) / 2 if math.isfinite(size) else 0.0
    return f"{half:g}{'b' if bold else ''}{'m' if mono else ''}"


def line_style(line: Line) -> str:
    styles = {id(span.style): span.style for span in line.spans}.values()
    if not any(style.bold or style.mono for style in styles):
        return style_key(line.size, bold=False)
    spans = [span for span in line.spans if any(map(str.isalnum, span.text))]
    return style_key(
        line.size,
        bold=bool(spans) and all(span.style.bold for span in spans),
        mono=bool(spans) and all(span.style.mono for span in spans),
    )


def edge_key(line: Line, height: float) -> str:
    """Return a digest of a line's words, with its place (top, bottom or turned), to find it on other pages of this
    height; digits do not count. Empty for a level line away from the edges."""
    if line.angle:
        zone = "w"
    elif line.bottom < EDGE * height:
        zone = "t"
    elif line.top > (1 - EDGE) * height:
        zone = "b"
    else:
        return ""
    text = re.sub(r"\d+", "#", " ".join(line.text.casefold().split()))
    # The page number may be part of the line on one page, and a separate line on another.
    text = text.removeprefix("# ").removesuffix(" #")
    return zone + blake2b(text.encode("utf-8", "replace"), digest_size=5).hexdigest()


def page_facts(content: PageContent) -> PageFacts:
    """Return the counts of styles and looks, keys of edge lines, words and possible running heads of one page, in time
    linear in its lines."""
    counted: dict[str, list[int]] = {}
    before = ""
    # Skip numbers of lines that end level with a page number: they belong to contents or a running head.
    paged = {foot_of(line) for line in content.lines if line.text.isdecimal()}
    for line in content.lines:
        if line.angle:
            continue
        depth = number_depth(line.text) if foot_of(line) not in paged else 0
        key = line_style(line)
        facts = counted.setdefault(key, [0] * (3 + _MAX_DEPTH))
        facts[0] += 1
        facts[1] += len(line.text)
        facts[2] += key != before
        before = key
        if depth:
            facts[2 + min(depth, _MAX_DEPTH)] += 1
    styles = {
        key: StyleFacts(facts[0], facts[1], facts[2], tuple(facts[3:])) for key, facts in _largest(counted).items()
    }
    placed = [line for line in content.lines if math.isfinite(line.top + line.bottom)]
    placed.sort(key=lambda line: line.top)
    outer = placed[:_MAX_EDGE_LINES] + placed[-_MAX_EDGE_LINES:] + [line for line in placed if line.angle][:8]
    edges = frozenset(edge_key(line, content.height) for line in outer) - {""}
    return PageFacts(
        styles, edges, words(content.lines), of_page(content.lines, content.height), looks_of_page(content.lines)
    )


def _largest(counted: dict[str, list[int]]) -> dict[str, list[int]]:
    kept = sorted(counted, key=lambda key: -counted[key][1])[:_MAX_STYLES]
    return {key: counted[key] for key in kept}


class _EdgeCount:
    """Counts the appearances of an edge line on pages near each other."""

    __slots__ = ("best", "last", "streak")

    def __init__(self, page: int) -> None:
        self.last, self.streak, self.best = page, 1, 1

    def add(self, page: int) -> None:
        self.streak = self.streak + 1 if page - self.last <= _NEAR_PAGES else 1
        self.best = max(self.best, self.streak)
        self.last = page


def profile(pages: Iterable[PageFacts]) -> DocumentProfile:
    """Return the profile of a document from the facts of its pages, which must be in order, in bounded memory."""
    styles: dict[str, list[int]] = {}
    seen: dict[str, _EdgeCount] = {}
    vocabulary, census, looks = Vocabulary(), Census(), Looks()
    count = 0
    for facts in pages:
        count += 1
        for key in facts.edges:
            if key in seen:
                seen[key].add(count)
            else:
                seen[key] = _EdgeCount(count)
        for key, style in facts.styles.items():
            added = (*style[:3], *style.depths)
            styles[key] = [a + b for a, b in zip(styles.get(key, [0] * len(added)), added, strict=True)]
        vocabulary.add(facts.words)
        census.add(count, facts.bands)
        looks.add(facts.looks)
        if count % 64 == 0:
            seen = {key: edge for key, edge in seen.items() if edge.best > 2 or edge.last >= count - _NEAR_PAGES}
            if len(styles) > 4 * _MAX_STYLES:
                styles = _largest(styles)
    least = 2 if count <= _SHORT_DOCUMENT else 3
    repeated = sorted((key for key in seen if seen[key].best >= least), key=lambda key: -seen[key].best)
    running = frozenset(key for key in repeated[:_MAX_REPEATED] if 2 * seen[key].best >= count)
    known = _profile(count, styles, frozenset(repeated[:_MAX_REPEATED]), looks)
    return replace(known, running=running, written=vocabulary.written(), bands=census.furniture(count))


def for_recognised_text(content: PageContent, document: DocumentProfile) -> DocumentProfile:
    """Return the document's profile with the text size and headings of one page of recognised text. Its sizes vary by
    chance, so only a few clearly larger sizes are headings."""
    by_size: Counter[float] = Counter()
    for line in content.lines:
        if not line.angle and math.isfinite(line.size):
            by_size[line.size] += len(line.text) ** 2  # Long lines are text, and many short ones are a figure's.
    half, passed, body = sum(by_size.values()) / 2, 0, 10.0  # the median size
    for size in sorted(by_size):
        passed += by_size[size]
        if passed >= half:
            body = size
            break
    levels: dict[str, int] = {}
    level, before = 0, math.inf
    measured = {line.size for line in content.lines if line.weight}
    larger = (
        size
        for size, weight in by_size.items()
        if weight > _INITIALS and size >= (_LARGER if size in measured else RECOGNISED_LARGER) * body
    )
    for size in sorted(larger, reverse=True):
        if size < (_NEXT_MEASURED if size in measured else _NEXT) * before:
            level, before = level + 1, size
        levels[style_key(size, bold=False)] = min(level, 3)
    return replace(document, body_size=body, body_bold=False, body_mono=False, headings=levels, looks={}, depths={})


def _profile(pages: int, styles: dict[str, list[int]], repeated: frozenset[str], looks: Looks) -> DocumentProfile:
    by_size: Counter[float] = Counter()
    for key, facts in styles.items():
        by_size[_size(key)] += facts[1]
    if not by_size:
        return DocumentProfile(pages=pages, repeated=repeated)
    body = max(by_size, key=lambda size: (by_size[size], size))
    alike = {key: facts[1] for key, facts in styles.items() if _size(key) == body}
    total = sum(alike.values()) or 1
    bold = sum(count for key, count in alike.items() if "b" in key) > 0.6 * total
    mono = sum(count for key, count in alike.items() if "m" in key) > 0.6 * total
    styled = _heading_styles(styles, body, body_bold=bold)
    known = {key: _usual_depth(styles[key]) for key in styled}
    alone = {key: 0 for key in looks.headings(body) if f"{size_of(key):g}" not in styled}
    depths = {key: depth for key, depth in (known | looks.depths(alone)).items() if depth}
    levels = _levels([*styled, *alone], depths)
    return DocumentProfile(
        pages=pages,
        body_size=body,
        body_bold=bold,
        body_mono=mono,
        headings={key: levels[key] for key in styled},
        looks={key: levels[key] for key in alone},
        depths=depths,
        repeated=repeated,
    )


def _size(key: str) -> float:
    """Return the size in the key of a style or look."""
    return size_of(key) if "@" in key else float(key.rstrip("bm"))


def _heading_styles(styles: dict[str, list[int]], body: float, *, body_bold: bool) -> list[str]:
    """Return the keys of the styles that are those of headings. `body`: the size of the running text."""
    total = sum(facts[1] for facts in styles.values())
    headings = []
    for key, (lines, characters, stretches, *_) in styles.items():
        size, bold = _size(key), "b" in key
        stands_out = size >= _LARGER * body or (bold and not body_bold and size >= 0.95 * body)
        brief = lines <= max(_MAX_STRETCH * stretches, _FEW_LINES)
        if stands_out and brief and characters <= _LONG * lines and characters <= max(_MAX_SHARE * total, 200):
            headings.append(key)
    bold_count = sum(styles[key][2] for key in headings if "b" in key)
    if bold_count < _MANY_BOLD:
        return headings
    # Beside bold headings, a rare plain style, little larger than the text, is for names and dates under a title.
    return [key for key in headings if "b" in key or _size(key) > _NAME_SIZE * body or styles[key][2] > _FEW_NAMES]


def _usual_depth(facts: Sequence[int]) -> int:
    """Return the depth of most numbers in a style; 0 if few of its lines have a number."""
    depths = facts[3:]
    numbered = sum(depths)
    return depths.index(max(depths)) + 1 if numbered and numbered >= _NUMBERED_SHARE * facts[2] else 0


def _levels(styles: Iterable[str], depths: Mapping[str, int]) -> dict[str, int]:
    """Return the level of each style: larger and bold styles first; numbered styles by the depth of their numbers."""
    levels: dict[str, int] = {}
    level, first, before = 0, 0, (0.0, False)
    for key in sorted(styles, key=lambda key: (-_size(key), not _is_bold(key), "@" in key, "c" not in key, key)):
        size, bold, depth = _size(key), _is_bold(key), depths.get(key, 0)
        if depth:
            first = first or max(1, level + 2 - depth)  # the level of numbers with one part
            level = first + depth - 1
        elif level == 0 or size < 0.95 * before[0] or bold != before[1]:
            level += 1
        before = (size, bold)
        levels[key] = min(level, _MAX_LEVELS)
    return levels


def _is_bold(key: str) -> bool:
    return "@" not in key and "b" in key

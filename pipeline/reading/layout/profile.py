"""What is typical of a document: the size of its text, the levels of its headings, and what its pages repeat.

One pass over all pages collects a few facts of each. The profile made of them is small, and lets pages that are
converted one by one agree.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

from pipeline.reading.layout.compounds import Vocabulary, Words, words
from pipeline.reading.layout.model import Line, PageContent

EDGE = 0.12
"""Share of the page's height, at the top and at the bottom, where headers and footers are."""

RECOGNISED_LARGER = 1.35
"""How many times as large as the text around it recognised text must be to be a heading."""

_MAX_EDGE_LINES = 8
_MAX_STYLES = 200
_MAX_REPEATED = 500
_MAX_LEVELS = 6
_LARGER = 1.12
_LONG = 70
_MAX_SHARE = 0.2
_FEW_LINES = 8
_MAX_STRETCH = 2.5  # A style with more lines in a row, on average, is text and not a heading.
_NEAR_PAGES = 2
_SHORT_DOCUMENT = 6
_SETS = ("repeated", "written")
_NUMBERED = re.compile(r"(\d{1,2}(?:\.\d{1,2}){0,4})\.?\s+\S")


class StyleFacts(NamedTuple):
    """How much text is in one style. `depth`: of the least deep number before a line, 0 for none. `stretches`: how many
    times the style begins after another one; running text has many lines in each."""

    lines: int
    characters: int
    depth: int
    stretches: int


@dataclass(frozen=True)
class PageFacts:
    """What the profile needs from one page. `edges` are keys of the lines at the top and the bottom; `words` show which
    are written with hyphens."""

    styles: dict[str, StyleFacts]
    edges: frozenset[str]
    words: Words = field(default_factory=Words)


@dataclass(frozen=True)
class DocumentProfile:
    """Kept with the document. `headings` maps styles to levels, `depths` to the least depth of their numbers; `written`
    holds compounds, and words that are not compounds though a line end cuts them as if they were."""

    pages: int = 0
    body_size: float = 10.0
    body_bold: bool = False
    body_mono: bool = False
    headings: dict[str, int] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    repeated: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, Any]:
        """The profile as JSON takes it."""
        return asdict(self) | {name: sorted(getattr(self, name)) for name in _SETS}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "DocumentProfile":
        """The profile that `to_dict` gave; unknown keys are ignored."""
        known = {name: saved[name] for name in cls.__dataclass_fields__ if name in saved}
        return cls(**known | {name: frozenset(known.get(name, ())) for name in _SETS})


def style_key(size: float, *, bold: bool, mono: bool = False) -> str:
    """The name of a style: its size to half a unit, and `b` for bold, `m` for monospaced."""
    half = round(2 * min(max(size, 0.0), 10_000.0)) / 2 if math.isfinite(size) else 0.0
    return f"{half:g}{'b' if bold else ''}{'m' if mono else ''}"


def line_style(line: Line) -> str:
    spans = [span for span in line.spans if any(map(str.isalnum, span.text))]
    return style_key(
        line.size,
        bold=bool(spans) and all(span.style.bold for span in spans),
        mono=bool(spans) and all(span.style.mono for span in spans),
    )


def number_depth(text: str) -> int:
    """1 for "2 Method", 2 for "2.1 Data"; 0 without a number."""
    found = _NUMBERED.match(text)
    return found.group(1).count(".") + 1 if found else 0


def edge_key(line: Line, height: float) -> str:
    """The key of a line at the top or the bottom of a page of this height, regardless of digits; empty elsewhere."""
    if line.angle:
        zone = "w"
    elif line.bottom < EDGE * height:
        zone = "t"
    elif line.top > (1 - EDGE) * height:
        zone = "b"
    else:
        return ""
    text = re.sub(r"\d+", "#", " ".join(line.text.casefold().split()))
    # The page's number may be part of the line on one page, and a line of its own on another.
    text = text.removeprefix("# ").removesuffix(" #")
    return zone + blake2b(text.encode("utf-8", "replace"), digest_size=5).hexdigest()


def page_facts(content: PageContent) -> PageFacts:
    """The facts of one page, in time linear in its lines."""
    counted: dict[str, list[int]] = {}
    before = ""
    for line in content.lines:
        if line.angle:
            continue
        depth = number_depth(line.text)
        key = line_style(line)
        facts = counted.setdefault(key, [0, 0, 0, 0])
        facts[3] += key != before
        before = key
        facts[0] += 1
        facts[1] += len(line.text)
        facts[2] = min(depth, facts[2]) if depth and facts[2] else depth or facts[2]
    styles = {key: StyleFacts(*facts) for key, facts in _largest(counted).items()}
    placed = [line for line in content.lines if math.isfinite(line.top + line.bottom)]
    placed.sort(key=lambda line: line.top)
    outer = placed[:_MAX_EDGE_LINES] + placed[-_MAX_EDGE_LINES:] + [line for line in placed if line.angle][:8]
    edges = frozenset(edge_key(line, content.height) for line in outer) - {""}
    return PageFacts(styles, edges, words(content.lines))


def _largest(counted: dict[str, list[int]]) -> dict[str, list[int]]:
    kept = sorted(counted, key=lambda key: -counted[key][1])[:_MAX_STYLES]
    return {key: counted[key] for key in kept}


class _Seen:
    """How often an edge line appears on pages near each other."""

    __slots__ = ("best", "last", "streak")

    def __init__(self, page: int) -> None:
        self.last, self.streak, self.best = page, 1, 1

    def again(self, page: int) -> None:
        self.streak = self.streak + 1 if page - self.last <= _NEAR_PAGES else 1
        self.best = max(self.best, self.streak)
        self.last = page


def profile(pages: Iterable[PageFacts]) -> DocumentProfile:
    """The profile of a document from its pages in order, in memory that does not grow with them."""
    styles: dict[str, list[int]] = {}
    seen: dict[str, _Seen] = {}
    vocabulary = Vocabulary()
    count = 0
    for facts in pages:
        count += 1
        for key in facts.edges:
            if key in seen:
                seen[key].again(count)
            else:
                seen[key] = _Seen(count)
        for key, (lines, characters, depth, stretches) in facts.styles.items():
            total = styles.setdefault(key, [0, 0, 0, 0])
            total[0] += lines
            total[1] += characters
            total[2] = min(depth, total[2]) if depth and total[2] else depth or total[2]
            total[3] += stretches
        vocabulary.add(facts.words)
        if count % 64 == 0:
            seen = {key: was for key, was in seen.items() if was.best > 2 or was.last >= count - _NEAR_PAGES}
            if len(styles) > 4 * _MAX_STYLES:
                styles = _largest(styles)
    least = 2 if count <= _SHORT_DOCUMENT else 3
    repeated = sorted((key for key in seen if seen[key].best >= least), key=lambda key: -seen[key].best)
    known = _profile(count, styles, frozenset(repeated[:_MAX_REPEATED]))
    return replace(known, written=vocabulary.written())


def for_recognised_text(content: PageContent, document: DocumentProfile) -> DocumentProfile:
    """The document's profile with the sizes of one page of recognised text: they vary by chance, so only a few clearly
    larger ones are headings."""
    by_size: Counter[float] = Counter()
    for line in content.lines:
        if not line.angle and math.isfinite(line.size):
            by_size[line.size] += len(line.text)
    half, passed, body = sum(by_size.values()) / 2, 0, 10.0  # the median size of a character
    for size in sorted(by_size):
        passed += by_size[size]
        if passed >= half:
            body = size
            break
    levels: dict[str, int] = {}
    level, before = 0, math.inf
    for size in sorted((size for size in by_size if size >= RECOGNISED_LARGER * body), reverse=True):
        if size < 0.8 * before:
            level, before = level + 1, size
        levels[style_key(size, bold=False)] = min(level, 3)
    return replace(document, body_size=body, body_bold=False, body_mono=False, headings=levels, depths={})


def _profile(pages: int, styles: dict[str, list[int]], repeated: frozenset[str]) -> DocumentProfile:
    by_size: Counter[float] = Counter()
    for key, (_, characters, _, _) in styles.items():
        by_size[_size(key)] += characters
    if not by_size:
        return DocumentProfile(pages=pages, repeated=repeated)
    body = max(by_size, key=lambda size: (by_size[size], size))
    alike = {key: facts[1] for key, facts in styles.items() if _size(key) == body}
    total = sum(alike.values()) or 1
    bold = sum(count for key, count in alike.items() if "b" in key) > 0.6 * total
    mono = sum(count for key, count in alike.items() if "m" in key) > 0.6 * total
    headings = _levels(styles, body, body_bold=bold)
    return DocumentProfile(
        pages=pages,
        body_size=body,
        body_bold=bold,
        body_mono=mono,
        headings=headings,
        depths={key: styles[key][2] for key in headings if styles[key][2]},
        repeated=repeated,
    )


def _size(key: str) -> float:
    return float(key.rstrip("bm"))


def _levels(styles: dict[str, list[int]], body: float, *, body_bold: bool) -> dict[str, int]:
    """The styles of headings with their levels: larger ones first, bold before plain."""
    total = sum(facts[1] for facts in styles.values())
    found = []
    for key, (lines, characters, _, stretches) in styles.items():
        size, bold = _size(key), "b" in key
        stands_out = size >= _LARGER * body or (bold and not body_bold and size >= 0.95 * body)
        brief = lines <= max(_MAX_STRETCH * stretches, _FEW_LINES)
        if stands_out and brief and characters <= _LONG * lines and characters <= max(_MAX_SHARE * total, 200):
            found.append((size, bold, key))
    found.sort(key=lambda style: (-style[0], not style[1]))
    levels: dict[str, int] = {}
    level, before = 0, (0.0, False)
    for size, bold, key in found:
        if level == 0 or size < 0.95 * before[0] or bold != before[1]:
            level, before = level + 1, (size, bold)
        levels[key] = min(level, _MAX_LEVELS)
    return levels

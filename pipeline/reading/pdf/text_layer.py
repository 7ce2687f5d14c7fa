"""Read the text layer of a PDF page as lines of styled words, and judge its quality.

One call reads the page's text. PDFium gives boxes once or twice per word and styles once per text object; only words
set in several pieces are read character by character.
"""

import ctypes
import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

import pypdfium2.raw as pdfium_c

from pipeline.reading.layout.cells import sub_line
from pipeline.reading.layout.model import SOFT_HYPHEN, Line, Span, holds
from pipeline.reading.layout.text import is_right_to_left
from pipeline.reading.pdf import bidi, diacritics, quality, words
from pipeline.reading.pdf.links import Links
from pipeline.reading.pdf.pdfium import Page, quick
from pipeline.reading.pdf.words import Glyphs

MIN_QUALITY = 0.7
"""OCR replaces a text layer of lower quality."""

MAX_CHARACTERS = 1_000_000
"""The text layer of a page with more characters is not read."""

_HYPHENS = frozenset("\x02\ufffe")  # PDFium's marks for a hyphen and the line break after it.
_LINE = re.compile(r"[^\r\n\x02\ufffe]+")
_LEVEL_PT = 1.0
_has_map_error = quick(pdfium_c.FPDFText_HasUnicodeMapError, ctypes.c_int)
_SAMPLES = 64
_ROOT, _BEHIND = "√", 0.3  # text sizes between a root's sign and its number
_TICKS, _BOXES, _TICKED = frozenset("✓✔✕✖✗✘"), frozenset("☐□"), "☒"
_MAX_TICKS = 200

_PRIVATE = {
    **{0xF730 + n: str(n) for n in range(10)},
    **{0xF643 + n: str(n) for n in range(10)},
    **{0xF761 + n: chr(0x61 + n) for n in range(26)},
}
"""Adobe's private characters for old-style figures (and Latin Modern's) and for small capitals."""

_BULLET = re.compile(r"(?<!\S)\x88(?=\s)")
"""LaTeX's bullet, in a font of pictures that names no characters."""
_HAS_PRIVATE = re.compile("[\uf643-\uf64c\uf730-\uf739\uf761-\uf77a]")
_UNREADABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\uffff\ue000-\uf8ff\U000f0000-\U0010ffff\ud800-\udfff]"
)

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_HALF = re.compile("(?<=[\U00010000-\U0010ffff])[\udc00-\udfff]")


class TextLayer(NamedTuple):
    """A page's text layer. `characters` counts all but white space; `quality` is 0 to 1."""

    lines: list[Line]
    characters: int
    quality: float

    @property
    def usable(self) -> bool:
        return self.characters > 0 and self.quality >= MIN_QUALITY


_NOTHING = TextLayer([], 0, 0.0)


def read(page: Page, until: float = math.inf) -> TextLayer:
    """Return the text layer of an open page, with its quality; empty if it has no text or more than `MAX_CHARACTERS`
    characters, or cannot be read before `until` (monotonic time)."""
    with page.text_page() as handle:
        if pdfium_c.FPDFText_CountChars(handle) > MAX_CHARACTERS:
            return _NOTHING
        text = _text(handle)
        whole = text if text.isascii() else _HALF.sub("", text)
        characters = len("".join(whole.split()))
        if not characters:
            return _NOTHING
        glyphs = Glyphs(handle, page)
        leftwards = is_right_to_left(text)
        lines = []
        for line in _lines(text, glyphs, Links(page), leftwards=leftwards):
            if time.monotonic() > until:
                return _NOTHING
            lines.append(line)
        lines = _with_level_roots(lines) if _ROOT in text else lines
        lines = _with_ticks(lines) if any(tick in text for tick in _TICKS) else lines
        lines = _with_fields(_without_repeats(lines), page)
        shares = readable_share(whole), _mapped_share(handle, len(text)), quality.score(page, handle, text, lines)
        return TextLayer(lines, characters, min(shares))


def readable_share(text: str) -> float:
    """Return the share of the text's characters besides white space, 0 to 1, that are not private, replaced or control
    characters; 0 without any."""
    visible = "".join(text.split())
    return 1 - len(_UNREADABLE.findall(visible)) / len(visible) if visible else 0.0


def _text(handle: Any) -> str:
    """Return the page's text with one character for each of PDFium's, so that positions agree.

    PDFium counts a character beyond the basic plane as two: the second half of its pair follows it, which words drop.
    """
    count = max(0, pdfium_c.FPDFText_CountChars(handle))
    buffer = (ctypes.c_ushort * (count + 1))()
    written = pdfium_c.FPDFText_GetText(handle, 0, count, buffer) - 1
    text = bytes(buffer)[: max(0, written) * 2].decode("utf-16-le", "surrogatepass")
    if len(text) != count:
        # Characters beyond the basic plane, and those that PDFium omits from its text, shift positions.
        codes = (min(pdfium_c.FPDFText_GetUnicode(handle, index), 0x10FFFF) for index in range(count))
        text = _PAIR.sub(lambda pair: _joined(pair.group()) + pair.group()[1], "".join(map(chr, codes)))
    text = text.translate(_PRIVATE) if _HAS_PRIVATE.search(text) else text
    text = _BULLET.sub("•", text) if "\x88" in text else text
    return diacritics.repair(handle, _without_false_hyphens(handle, text))


def _joined(pair: str) -> str:
    return pair.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _without_false_hyphens(handle: Any, text: str) -> str:
    """Replace glyphs without a character, which look like the mark of a hyphen at a line's end, by `GONE`."""
    count = len(text)

    def checked(match: re.Match[str]) -> str:
        return match.group() if _breaks_line(handle, match.start(), count) else diacritics.GONE

    return re.sub("[\x02\ufffe]", checked, text)


def _breaks_line(handle: Any, index: int, count: int) -> bool:
    """Whether the characters before and after this one are on different lines."""
    if not 0 < index < count - 1:
        return True
    x, before, after = ctypes.c_double(), ctypes.c_double(), ctypes.c_double()
    pdfium_c.FPDFText_GetCharOrigin(handle, index - 1, x, before)
    start = x.value
    pdfium_c.FPDFText_GetCharOrigin(handle, index + 1, x, after)
    return abs(before.value - after.value) > _LEVEL_PT or x.value < start


def _mapped_share(handle: Any, count: int) -> float:
    """Return the share of sampled glyphs for which the font names a character."""
    sample = range(0, count, max(1, count // _SAMPLES))
    mapped = [index for index in sample if _has_map_error(handle, index) != 1]
    return len(mapped) / len(sample)


def _lines(text: str, glyphs: Glyphs, links: Links, *, leftwards: bool) -> Iterator[Line]:
    """Yield PDFium's lines, cut at wide gaps: text on one baseline may belong to several columns.

    `leftwards`: most of the page is in a script that is read from right to left."""
    before: Line | None = None
    for match in _LINE.finditer(text):
        if bidi.concerns(match.group(), leftwards=leftwards):
            yield from _mixed_lines(text, match, glyphs, links, leftwards=leftwards)
            continue
        ending = SOFT_HYPHEN if text[match.end() : match.end() + 1] in _HYPHENS else ""
        for line in glyphs.lines(text, *match.span(), ending, links, before):
            if line.text:
                yield line
            before = line


def _mixed_lines(text: str, match: re.Match[str], glyphs: Glyphs, links: Links, *, leftwards: bool) -> Iterator[Line]:
    """Yield the lines into which wide gaps and base lines cut one of PDFium's lines that has text read leftwards."""
    pieces = [
        bidi.Piece(word, part.kind, part.start, part.end)
        for part in bidi.parts(text, match.start(), match.end())
        for word in links.on(glyphs.words(text, part.start, part.end))
    ]
    for level in bidi.levels(bidi.spelled(text, pieces, glyphs.box)):
        start = 0
        for stretch in words.pieces([piece.word for piece in level]):
            line = words.as_line(bidi.read_order(level[start : start + len(stretch)], text, leftwards=leftwards))
            start += len(stretch)
            if line.text:
                yield line


def _with_level_roots(lines: list[Line]) -> list[Line]:
    """Return the lines with each root's sign level with the number behind it: TeX's sign hangs from the place where it
    is set, so that it seems to be a line of its own."""
    placed = [*lines]
    for place, (sign, after) in enumerate(pairwise(lines)):
        near = abs(after.left - sign.right) < _BEHIND * sign.size
        if sign.text == _ROOT and near and 0 < after.top - sign.top < 1.5 * sign.size:
            placed[place] = sign._replace(top=after.top, bottom=after.bottom)
    return placed


def _with_ticks(lines: list[Line]) -> list[Line]:
    """Return the lines with each tick and the empty box below it as one ticked box."""
    found = [(span, line) for line in lines for span in line.spans if span.text in _TICKS][:_MAX_TICKS]
    ticks = [(id(span), sub_line(line, [span])) for span, line in found]
    used: set[int] = set()

    def ticked(span: Span, line: Line) -> Span:
        box = (span.left, line.top, span.right, line.bottom)
        on = {tick for tick, place in ticks if holds(box, place)} if span.text in _BOXES else set()
        used.update(on)
        return span._replace(text=_TICKED) if on else span

    shown = [(line, [ticked(span, line) for span in line.spans]) for line in lines]
    kept = [(line, [span for span in spans if id(span) not in used]) for line, spans in shown]
    return [sub_line(line, spans) if spans != list(line.spans) else line for line, spans in kept if spans]


def _without_repeats(lines: list[Line]) -> list[Line]:
    """Return the lines without those drawn a second time, a hair apart, to look bold."""
    seen: dict[str, list[Line]] = {}
    counts = Counter(line.text for line in lines)
    kept = []
    for line in lines:
        if counts[line.text] > 1:
            earlier = seen.setdefault(line.text, [])
            near = 0.3 * line.size
            if any(abs(a.left - line.left) < near and abs(a.bottom - line.bottom) < near for a in earlier[-8:]):
                continue
            earlier.append(line)
        kept.append(line)
    return kept


def _with_fields(lines: list[Line], page: Page) -> list[Line]:
    """Return the lines with the page's check boxes and values in boxes as text, in place of their look."""
    size = median(line.size for line in lines) if page.fields else 0.0
    for field in page.fields:
        box = page.displayed(*field.box)
        kept = []
        for line in lines:
            inside = box[1] < (line.top + line.bottom) / 2 < box[3]
            spans = [span for span in line.spans if not (inside and box[0] < (span.left + span.right) / 2 < box[2])]
            if spans:
                kept.append(line if len(spans) == len(line.spans) else sub_line(line, spans))
        # Text in the size of its neighbours, level with the box, however large that is.
        middle = (box[1] + box[3]) / 2
        sides = (box[0], middle - size / 2, box[2], middle + size / 2)
        value = Span(field.text, box[0], box[2])
        around = next((line for line in kept if _is_amid(value, line, middle)), None)
        if around is None:
            lines = [*kept, Line(field.text, *sides, size, (value,))]
        else:
            spans = sorted((*around.spans, value), key=attrgetter("left"))
            lines = [sub_line(line, spans) if line is around else line for line in kept]
    return lines


def _is_amid(value: Span, line: Line, middle: float) -> bool:
    """Whether the field, the middle of which is at this height, is in a gap between words of the line, which reads from
    left to right."""
    if line.angle or not line.top < middle < line.bottom or not line.left < value.left < value.right < line.right:
        return False
    return all(a.left <= b.left for a, b in pairwise(line.spans))

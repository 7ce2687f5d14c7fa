"""The text layer of a PDF page as lines with boxes, and how far that text can be trusted.

PDFium's text is read in one call for the page and its boxes in a few calls for each line: a loop over characters
would take several times as long.
"""

import ctypes
import re
from itertools import pairwise
from typing import Any, NamedTuple

import pypdfium2.raw as pdfium_c

from pipeline.providers.local.layout import SOFT_HYPHEN, Line
from pipeline.providers.local.pdfium import Box, Page

MIN_QUALITY = 0.7
"""Share of readable characters below which a text layer is thrown away in favour of OCR."""

_HYPHEN = "\ufffe"  # What PDFium puts in place of a hyphen and the line break after it.
_LINE = re.compile(r"[^\r\n\ufffe]+")
_SPACE = re.compile(r"[ \t\u00a0]+")
_GAP = 1.2  # text sizes between two words, from which they are separate pieces
_SAMPLES = 64

_UNREADABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\uffff\ue000-\uf8ff\U000f0000-\U0010ffff\ud800-\udfff]"
)
_DROPPED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")
_LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}


class TextLayer(NamedTuple):
    """What a page's text layer holds. `characters` counts all but white space; `quality` is 0 to 1."""

    lines: list[Line]
    characters: int
    quality: float

    @property
    def usable(self) -> bool:
        return self.characters > 0 and self.quality >= MIN_QUALITY


def read(page: Page) -> TextLayer:
    """The text layer of an open page."""
    with page.text_page() as handle:
        text = _text(handle)
        characters = len(text) - len(re.findall(r"\s", text))
        if not characters:
            return TextLayer([], 0, 0.0)
        lines = _Reader(handle, text, page).lines()
        return TextLayer(lines, characters, min(readable_share(text), _mapped_share(handle, len(text))))


def readable_share(text: str) -> float:
    """Share (0 to 1) of the characters, white space aside, that are neither private, replaced nor control ones."""
    visible = "".join(text.split())
    return 1 - len(_UNREADABLE.findall(visible)) / len(visible) if visible else 0.0


def _text(handle: Any) -> str:
    """The page's text, with one character for each of PDFium's, so that positions in both are the same."""
    count = max(0, pdfium_c.FPDFText_CountChars(handle))
    buffer = (ctypes.c_ushort * (count + 1))()
    written = pdfium_c.FPDFText_GetText(handle, 0, count, buffer) - 1
    text = bytes(buffer)[: max(0, written) * 2].decode("utf-16-le", "surrogatepass")
    if len(text) == count:
        return text
    # Characters beyond the basic plane, or ones that PDFium leaves out of its text, shift positions.
    return "".join(chr(min(pdfium_c.FPDFText_GetUnicode(handle, index), 0x10FFFF)) for index in range(count))


def _mapped_share(handle: Any, count: int) -> float:
    """Share of sampled glyphs whose font says which character they are."""
    sample = range(0, count, max(1, count // _SAMPLES))
    mapped = [index for index in sample if pdfium_c.FPDFText_HasUnicodeMapError(handle, index) != 1]
    return len(mapped) / len(sample)


class _Reader:
    """Walks over one page's text and asks for the boxes of its lines."""

    def __init__(self, handle: Any, text: str, page: Page) -> None:
        self._handle = handle
        self._text = text
        self._displayed = page.displayed
        self._rect = pdfium_c.FS_RECTF()
        self._sides = [ctypes.c_double() for _ in range(4)]

    def lines(self) -> list[Line]:
        found: list[Line] = []
        for match in _LINE.finditer(self._text):
            text = match.group()
            start = match.start() + len(text) - len(text.lstrip())
            count = len(text.strip())
            if count:
                pieces = self._pieces(start, count, found[-1] if found else None)
                if self._text[match.end() : match.end() + 1] == _HYPHEN:
                    pieces[-1] = pieces[-1]._replace(text=pieces[-1].text + SOFT_HYPHEN)
                found += pieces
        return [line for line in found if line.text]

    def _pieces(self, start: int, count: int, before: Line | None) -> list[Line]:
        """The line at `start`, cut at wide gaps: what PDFium has on one baseline may belong to several columns."""
        rects = self._rects(start, count)
        size = self._size(self._typical(start, count))
        whole = self._line(start, count, rects, size, before)
        gapped = any(b[0] - a[2] > _GAP * size for a, b in pairwise(rects))
        if not gapped and whole.right - whole.left < 0.85 * size * count:
            return [whole]
        cuts = [gap.span() for gap in _SPACE.finditer(self._text, start, start + count) if self._is_wide(gap, size)]
        if not cuts:
            return [whole]
        starts = [start, *(end for _, end in cuts)]
        ends = [*(begin for begin, _ in cuts), start + count]
        return [
            self._line(begin, end - begin, self._rects(begin, end - begin), size, whole)
            for begin, end in zip(starts, ends, strict=True)
        ]

    def _line(self, start: int, count: int, rects: list[Box], size: float, before: Line | None) -> Line:
        text = _DROPPED.sub("", self._text[start : start + count]).translate(_LIGATURES).strip()
        loose = self._loose(self._typical(start, count))
        if not rects:  # Glyphs without an extent still have text: it goes where the text before it was.
            box = loose if loose[3] > loose[1] or before is None else before[1:5]
            return Line(text, *box, size)
        left, right = min(rect[0] for rect in rects), max(rect[2] for rect in rects)
        top, bottom = min(rect[1] for rect in rects), max(rect[3] for rect in rects)
        if bottom - top <= 2 * size and loose[3] > loose[1]:
            # Tight boxes are as low as a dash; the font's own height makes lines comparable.
            top, bottom = min(top, loose[1]), max(bottom, loose[3])
        return Line(text, left, top, right, bottom, size)

    def _typical(self, start: int, count: int) -> int:
        """Index of a character that is as large as the line: its first one may be a note's raised number."""
        first, middle = self._loose(start), self._loose(start + count // 2)
        return start if first[3] - first[1] >= middle[3] - middle[1] else start + count // 2

    def _is_wide(self, gap: re.Match[str], size: float) -> bool:
        return self._loose(gap.end())[0] - self._loose(gap.start() - 1)[2] > _GAP * size

    def _size(self, index: int) -> float:
        """Height of the font as displayed: the nominal size ignores how the page scales it."""
        box = self._loose(index)
        nominal = float(pdfium_c.FPDFText_GetFontSize(self._handle, index))
        return box[3] - box[1] if box[3] - box[1] > 0.1 else max(nominal, 1.0)

    def _rects(self, start: int, count: int) -> list[Box]:
        left, top, right, bottom = self._sides
        rects = range(max(0, pdfium_c.FPDFText_CountRects(self._handle, start, count)))
        return [
            self._displayed(left.value, bottom.value, right.value, top.value)
            for index in rects
            if pdfium_c.FPDFText_GetRect(self._handle, index, left, top, right, bottom)
        ]

    def _loose(self, index: int) -> Box:
        rect = self._rect
        if not pdfium_c.FPDFText_GetLooseCharBox(self._handle, index, rect):
            return (0.0, 0.0, 0.0, 0.0)
        return self._displayed(rect.left, rect.bottom, rect.right, rect.top)

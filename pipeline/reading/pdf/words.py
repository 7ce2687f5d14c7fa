"""The words of a PDF's text layer with their places and styles, and lines made of them."""

import ctypes
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pypdfium2.raw as pdfium_c

from pipeline.reading.layout.model import PLAIN, Line, Span, Style
from pipeline.reading.layout.text import CJK
from pipeline.reading.pdf.pdfium import Page, quick, render_mode, text_object_at

_ASCENT, _DESCENT = 0.75, 0.25  # of the font's size: a font's own figures are unreliable
_GAP = 1.2  # text sizes; words further apart are separate pieces
_DROPPED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")
_LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}

_BOLD = re.compile(r"bold|black|heavy|demi|extrab|medi(?:$|[^au])|(?:^|[-,])(?:eb|b|bd)$|CMBX|bx\d", re.IGNORECASE)
_ITALIC = re.compile(r"ital|obliq|slant|(?:^|[-,])it$|CMTI|CMMI|CMSL", re.IGNORECASE)
_MONO = re.compile(r"cour|mono|consol|typewriter|CMTT|inconsolata|menlo|fixed", re.IGNORECASE)
_REGULAR = re.compile(r"regul|roman|book|light|thin|normal", re.IGNORECASE)
_FIXED_PITCH, _ITALIC_FLAG, _FORCE_BOLD = 1, 1 << 6, 1 << 18
_BOLD_WEIGHT = 650
_FILLED_AND_STROKED = 2  # the render mode with which programs imitate a bold font

_loose_box = quick(pdfium_c.FPDFText_GetLooseCharBox, ctypes.c_int)
_origin = quick(pdfium_c.FPDFText_GetCharOrigin, ctypes.c_int)
_font_of = quick(pdfium_c.FPDFTextObj_GetFont, ctypes.c_void_p)


class Word(NamedTuple):
    """A word, or the part of a word in one style; `spaced`: a space precedes it."""

    text: str
    left: float
    top: float
    right: float
    bottom: float
    size: float
    style: Style
    angle: int
    spaced: bool

    @property
    def start(self) -> float:
        """Its start along its own direction."""
        if self.angle == 0:
            return self.left
        return {90: self.top, 180: -self.right, 270: -self.bottom}.get(self.angle, self.left)

    @property
    def end(self) -> float:
        if self.angle == 0:
            return self.right
        return {90: self.bottom, 180: -self.left, 270: -self.top}.get(self.angle, self.right)

    @property
    def foot(self) -> float:
        """Its lower end, below its own baseline; grows towards the next line."""
        if self.angle == 0:
            return self.bottom
        return {90: -self.left, 180: -self.top, 270: self.right}.get(self.angle, self.bottom)


class _Fonts:
    """Caches the styles of one page's fonts, so that PDFium is called once per font, not per character."""

    def __init__(self) -> None:
        self._styles: dict[int, Style] = {}

    def style(self, text_object: ctypes.c_void_p) -> Style:
        """Return the style of the text object's font; plain without a font."""
        font = _font_of(text_object)
        if not font:
            return Style()
        style = self._styles.get(font)
        if style is None:
            style = self._styles[font] = _style(ctypes.cast(font, pdfium_c.FPDF_FONT))
        if render_mode(text_object) == _FILLED_AND_STROKED:
            return style._replace(bold=True)
        return style


def _style(font: Any) -> Style:
    buffer = ctypes.create_string_buffer(128)
    length = pdfium_c.FPDFFont_GetBaseFontName(font, buffer, len(buffer))
    name = buffer.value.decode("utf-8", "replace") if 0 < length <= len(buffer) else ""
    name = re.sub(r"^[A-Z]{6}\+", "", name)
    flags = max(0, pdfium_c.FPDFFont_GetFlags(font))
    heavy = pdfium_c.FPDFFont_GetWeight(font) >= _BOLD_WEIGHT and not _REGULAR.search(name)
    return Style(
        bold=bool(_BOLD.search(name)) or bool(flags & _FORCE_BOLD) or heavy,
        italic=bool(_ITALIC.search(name)) or bool(flags & _ITALIC_FLAG),
        mono=bool(_MONO.search(name)) or bool(flags & _FIXED_PITCH),
        font=re.split(r"[-,]", name)[0],
    )


class _Setting(NamedTuple):
    """The properties that all characters of a text object share."""

    style: Style
    size: float
    angle: int

    def is_like(self, other: "_Setting") -> bool:
        near = abs(self.size - other.size) < 0.1 * max(self.size, other.size)
        return near and self.style == other.style and self.angle == other.angle


class Glyphs:
    """Reads the characters of one page from PDFium."""

    def __init__(self, handle: Any, page: Page) -> None:
        self._handle = handle
        self._address = ctypes.cast(handle, ctypes.c_void_p)
        self.page = page
        self._corner = page.corner
        self._fonts = _Fonts()
        self._settings: dict[int, _Setting] = {}
        self._rect = pdfium_c.FS_RECTF()
        self._to_rect = ctypes.byref(self._rect)
        self._matrix = pdfium_c.FS_MATRIX()
        self._sides = [ctypes.c_double() for _ in range(4)]
        self._to_origin = ctypes.byref(self._sides[0]), ctypes.byref(self._sides[1])

    def word(self, text: str, start: int, end: int, before: Word | None) -> list[Word]:
        """Return the word `text[start:end]` of the page's text in parts, cut where its style changes; empty if no
        character of it is shown.

        `before`: the previous word, whose place a glyph without extent gets.
        """
        first = text_object_at(self._address, start)
        if end - start == 1 or first == text_object_at(self._address, end - 1):
            part = self._part(text, start, end, first, before)
            return [part] if part else []
        parts: list[Word] = []
        begin, setting = start, self._setting(first, start)
        for index in range(start + 1, end + 1):
            address = text_object_at(self._address, index) if index < end else 0
            other = self._setting(address, index) if index < end else None
            if other is None or not (other is setting or other.is_like(setting)):
                part = self._part(text, begin, index, text_object_at(self._address, begin), before)
                if part:
                    parts.append(part._replace(spaced=begin == start))
                begin, setting = index, other or setting
        return parts

    def shown(self, words: list[Word]) -> list[Word]:
        """Return the words in the visible part of the page; printers' marks are outside."""
        width, height = self.page.size
        return [
            word for word in words if word.right >= 0 and word.left <= width and word.bottom >= 0 and word.top <= height
        ]

    def _part(self, text: str, start: int, end: int, address: int, before: Word | None) -> Word | None:
        clean = text[start:end]
        if not (clean.isascii() and clean.isprintable()):
            clean = _DROPPED.sub("", clean).translate(_LIGATURES).replace("\u2010", "-")
            if not clean:
                return None
        setting = self._settings.get(address or 0) or self._setting(address, start)
        left, top, right, bottom = self.box(start)
        vertical = False
        if end - start > 1:
            # For each word, comparisons take a third of the time of `min` and `max`.
            other_left, other_top, other_right, other_bottom = self.box(end - 1)
            vertical = other_top > top + 0.5 * (bottom - top) and not clean.isascii() and setting.angle == 0
            left = other_left if other_left < left else left  # noqa: FURB136
            top = other_top if other_top < top else top  # noqa: FURB136
            right = other_right if other_right > right else right  # noqa: FURB136
            bottom = other_bottom if other_bottom > bottom else bottom  # noqa: FURB136
        if right <= left and bottom <= top:
            if before is None:
                return Word(clean, left, top, right, bottom, setting.size, setting.style, setting.angle, spaced=True)
            # Glyphs without an extent still have text: place it at the previous text.
            return before._replace(text=clean, spaced=True)
        style, size, angle = setting
        if vertical and right - left < 2.5 * size and CJK.search(clean):
            return Word(clean, left, top, right, bottom, size, style, 90, spaced=True)
        if angle == 0 and _origin(self._address, start, *self._to_origin):
            x, y = self._sides[0].value, self._sides[1].value
            baseline = self._corner[1] - y if self._corner else self.page.displayed(x, y, x, y)[1]
            top, bottom = baseline - _ASCENT * size, baseline + _DESCENT * size
        return Word(clean, left, top, right, bottom, size, style, angle, spaced=True)

    def _setting(self, address: int | None, index: int) -> _Setting:
        if not address:
            return _Setting(PLAIN, self._size(index, 1.0), 0)
        setting = self._settings.get(address)
        if setting is None:
            setting = self._settings[address] = self._new_setting(address, index)
        return setting

    def _new_setting(self, address: int, index: int) -> _Setting:
        style = self._fonts.style(ctypes.c_void_p(address))
        matrix = self._matrix
        if not pdfium_c.FPDFText_GetMatrix(self._handle, index, matrix):
            return _Setting(style, self._size(index, 1.0), 0)
        if abs(matrix.b) < 1e-3 * abs(matrix.a) and abs(matrix.c) > 0.1 * abs(matrix.d):
            style = style._replace(italic=True)
        angle = math.degrees(math.atan2(-matrix.b, matrix.a)) + self.page.rotation
        turned = round(angle / 90) * 90
        aslant = abs(angle - turned) > 5
        return _Setting(style, self._size(index, math.hypot(matrix.c, matrix.d)), -1 if aslant else turned % 360)

    def _size(self, index: int, scale: float) -> float:
        """Return the font's size as displayed, or one from a glyph's height if implausible (picture fonts)."""
        size = float(pdfium_c.FPDFText_GetFontSize(self._handle, index)) * scale
        left, right, bottom, top = self._sides
        if not pdfium_c.FPDFText_GetCharBox(self._handle, index, left, right, bottom, top):
            return max(size, 1.0)
        extent = max(abs(top.value - bottom.value), abs(right.value - left.value))
        if size > 0.1 and extent < 2.5 * size and (extent > 0.08 * size or extent <= 0.01):
            return size
        return max(extent / 0.7, 1.0)

    def box(self, index: int) -> tuple[float, float, float, float]:
        """Return the place of one character, as displayed; zeros if PDFium knows none."""
        if not _loose_box(self._address, index, self._to_rect):
            return (0.0, 0.0, 0.0, 0.0)
        rect = self._rect
        if self._corner is None:
            return self.page.displayed(rect.left, rect.bottom, rect.right, rect.top)
        left, top = self._corner  # As above, without the call: most pages are not rotated.
        return (rect.left - left, top - rect.top, rect.right - left, top - rect.bottom)


def pieces(words: Sequence[Word]) -> list[list[Word]]:
    """Cut the words of one line at wide gaps, and where they turn or change to another line."""
    piece = [words[0]]
    result = [piece]
    before, start, end, foot = words[0], words[0].start, words[0].end, words[0].foot
    for word in words[1:]:
        size = max(before.size, word.size)
        start_before, end_before, foot_before = start, end, foot
        level = word.angle == 0
        start, end, foot = (word.left, word.right, word.bottom) if level else (word.start, word.end, word.foot)
        apart = start - end_before > _GAP * size or end < start_before - _GAP * size or word.angle != before.angle
        # A raised figure of the next line may be no lower than this line.
        step = abs(foot - foot_before)
        if apart or step > 0.8 * size or (step > 0.25 * size and start < end_before - 2 * size):
            piece = []
            result.append(piece)
        piece.append(word)
        before = word
    return result


def as_line(words: Sequence[Word], ending: str = "") -> Line:
    """Return the words as a line, with raised and lowered words marked; `ending` follows the last word."""
    size = words[0].size
    if any(word.size != size for word in words):
        sizes: Counter[float] = Counter()
        for word in words:
            sizes[word.size] += len(word.text)
        size = max(sizes, key=lambda size: (sizes[size], size))
    main = [word for word in words if word.size == size]
    foot, smaller = main[0].foot, 0.85 * size
    spans = [
        Span(
            word.text,
            word.left,
            word.right,
            word.style if word.size >= smaller else _shifted(word, size, foot),
            word.spaced,
        )
        for word in words
    ]
    if ending:
        spans[-1] = spans[-1]._replace(text=spans[-1].text + ending)
    text = "".join([f" {span.text}" if span.spaced else span.text for span in spans]).strip()
    left, right = min([word.left for word in words]), max([word.right for word in words])
    high = main if main[0].angle == 0 else words
    top, bottom = min([word.top for word in high]), max([word.bottom for word in high])
    return Line(text, left, top, right, bottom, size, tuple(spans), main[0].angle)


def _shifted(word: Word, size: float, foot: float) -> Style:
    """Return the style of a word that is smaller than its line: raised, lowered or neither."""
    # A smaller word ends higher even on the same baseline.
    rise = foot - word.foot - _DESCENT * (size - word.size)
    if rise > 0.12 * size:
        return word.style._replace(shift=1)
    return word.style._replace(shift=-1) if rise < -0.08 * size else word.style

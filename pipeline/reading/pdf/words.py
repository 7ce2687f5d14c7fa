"""The words of a PDF's text layer with their places and styles, and lines made of them."""

import ctypes
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol
from unicodedata import normalize

import pypdfium2.raw as pdfium_c

from pipeline.reading.layout.model import DESCENT, PLAIN, Line, Span, Style
from pipeline.reading.layout.text import CJK
from pipeline.reading.pdf.pdfium import Page, quick, render_mode, text_object_at
from pipeline.reading.pdf.quality import is_hidden

_ASCENT = 0.75  # of the font's size: a font's own figures are unreliable
_GAP = 1.2  # text sizes; words further apart are separate pieces
_SPACE = 0.2  # text sizes; the least space between words
_WORD = re.compile(r"\S+")
_DROPPED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")
_LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}

_NEGATION = "\u0338"
_NEGATED = re.compile(f"{_NEGATION}(\\S)")


def _dingbats(characters: str, signs: str) -> dict[int, int | str]:
    """Map characters, and the private ones of their codes, to signs."""
    return {code + ord(c): sign for c, sign in zip(characters, signs, strict=True) for code in (0, 0xF000)}


_SIGNS: dict[str, Mapping[int, int | str]] = {
    "CMSY": str.maketrans("0'6", f"′≃{_NEGATION}"),
    "CMMI": str.maketrans("?`", "⋆ℓ"),
    "Wingdings2": _dingbats("OPRS£", "✗✓☒☒☐"),
    "Wingdings": _dingbats("lnuv§Øàüûopqr¨xýþ", "●■◆❖▪➢→✓✗☐□□□☐☒☒☒"),
}
"""Signs of fonts, by the starts of their names and the characters that PDFium returns. A negation precedes its sign."""

_TEX = r"^(?:cm|sf|ec|la|cs|pl)"
_BOLD = re.compile(
    r"bold|black|heavy|demi|extrab|medi(?:$|[^au])|(?:^|[-,])(?:eb|b|bd)$|CMBX|bx\d"
    rf"|{_TEX}(?:b|mib|bsy|rb|b[il]|s[xo]|xc|oc|ssdc)\d",
    re.IGNORECASE,
)
_ITALIC = re.compile(r"ital|obliq|slant|(?:^|[-,])it$|CMTI|CMMI|CMSL", re.IGNORECASE)
_MONO = re.compile(
    rf"cour|mono|nimbusmon|consol|typewriter|inconsolata|menlo|monaco|fixed|{_TEX}(?:sl|it?|vt)?tt\d"
    r"|^(?:sf|ec|la)(?:st|it|vt|tc)\d",
    re.IGNORECASE,
)
_REGULAR = re.compile(
    rf"regu|roman|book|light|thin|normal|^(?:times|helvetica|courier|symbol|nimbus|lm)|{_TEX}[a-z]{{1,5}}\d",
    re.IGNORECASE,
)
"""Names of fonts in families that name their bold type, whatever weight a file claims."""

_TINY_PT = 2.0
_FIXED_PITCH, _ITALIC_FLAG, _FORCE_BOLD = 1, 1 << 6, 1 << 18
_BOLD_WEIGHT = 650
_FILLED_AND_STROKED = 2  # the render mode with which programs imitate a bold font

_loose_box = quick(pdfium_c.FPDFText_GetLooseCharBox, ctypes.c_int)
_origin = quick(pdfium_c.FPDFText_GetCharOrigin, ctypes.c_int)
_matrix_of = quick(pdfium_c.FPDFText_GetMatrix, ctypes.c_int)
_font_size = quick(pdfium_c.FPDFText_GetFontSize, ctypes.c_double)
_tight_box = quick(pdfium_c.FPDFText_GetCharBox, ctypes.c_int)
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


class LinkPlaces(Protocol):
    """The places of a page's links."""

    def are_near(self, y: float) -> bool:
        """Whether a link may lie at this height."""

    def on(self, words: list[Word]) -> list[Word]:
        """Return the words; a word whose middle lies on a link has the link's address in its style."""


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
    return _named_style(name, max(0, pdfium_c.FPDFFont_GetFlags(font)), pdfium_c.FPDFFont_GetWeight(font))


@lru_cache(maxsize=1_000)
def _named_style(name: str, flags: int, weight: int) -> Style:
    heavy = weight >= _BOLD_WEIGHT and not _REGULAR.search(name)
    return Style(
        bold=bool(_BOLD.search(name)) or bool(flags & _FORCE_BOLD) or heavy,
        italic=bool(_ITALIC.search(name)) or bool(flags & _ITALIC_FLAG),
        mono=bool(_MONO.search(name)) or bool(flags & _FIXED_PITCH),
        font=re.split(r"[-,]", name)[0],
    )


class _Setting(NamedTuple):
    """The properties that all characters of a text object share. `unseen`: hidden and tiny, as are words for screen
    readers alone."""

    style: Style
    size: float
    angle: int
    unseen: bool = False

    def is_like(self, other: "_Setting") -> bool:
        near = abs(self.size - other.size) < 0.1 * max(self.size, other.size)
        return near and self.style == other.style and self.angle == other.angle and self.unseen == other.unseen


class Glyphs:
    """Reads the characters of one page from PDFium."""

    def __init__(self, handle: Any, page: Page) -> None:
        self._handle = handle
        self._address = ctypes.cast(handle, ctypes.c_void_p)
        self.page = page
        self._corner = page.corner
        self._fonts = _Fonts()
        self._settings: dict[int, _Setting] = {}
        self._levels: dict[tuple[int, float], tuple[float, float]] = {}
        self._rect = pdfium_c.FS_RECTF()
        self._to_rect = ctypes.byref(self._rect)
        self._rect_values = memoryview(self._rect).cast("B").cast("f")  # Quicker than the fields of the structure.
        self._matrix = pdfium_c.FS_MATRIX()
        self._to_matrix = ctypes.byref(self._matrix)
        self._matrix_values = memoryview(self._matrix).cast("B").cast("f")
        self._sides = [ctypes.c_double() for _ in range(4)]
        self._to_sides = [ctypes.byref(side) for side in self._sides]
        self._to_origin = self._to_sides[:2]
        self._upright = round(page.rotation / 90) * 90 % 360

    def lines(self, text: str, start: int, end: int, ending: str, links: LinkPlaces, before: Line | None) -> list[Line]:
        """Return the lines in `text[start:end]`, a line of the page's text, cut at wide gaps: text on one baseline may
        belong to several columns. `ending` follows the last word; `before`: the line
        whose last word's place a glyph without extent gets."""
        spans = [match.span() for match in _WORD.finditer(text, start, end)]
        objects = self._objects(spans)
        level = self._level_words(text, spans, objects, links)
        if level is not None:
            return _level_lines(*level, ending)
        words = self._words(text, spans, objects, before and _last_word(before))
        stretches = pieces(links.on(words)) if words else []
        return [as_line(piece) for piece in stretches[:-1]] + [as_line(piece, ending) for piece in stretches[-1:]]

    def _level_words(  # noqa: C901, PLR0911, PLR0912  (one loop: it calls PDFium twice a word and nothing else)
        self, text: str, spans: Sequence[tuple[int, int]], objects: Sequence[int | None], links: LinkPlaces
    ) -> tuple[list[Span], float, tuple[float, float]] | None:
        """Return (words, size, top and bottom) if all words are on one base line in one style and without links, as in
        most lines; otherwise None. It takes a third of the time of `_words`."""
        address, to_rect = self._address, self._to_rect
        if self._corner is None or not spans:
            return None
        (x, y), width = self._corner, self.page.size[0]
        first = objects[0]
        setting = self._setting(first, spans[0][0])
        style, new = setting.style, tuple.__new__  # Half the time of a named tuple's own constructor.
        if setting.unseen or _signs(style.font):
            return None
        level: tuple[float, float] | None = None
        words: list[Span] = []
        last_top: float | None = None
        for (begin, stop), own, following in zip(spans, objects, [*objects[1:], None], strict=True):
            if own != first:
                first, last_top = own, None
                if self._setting(own, begin) != setting:
                    return None
            clean = text[begin:stop]
            if not (clean.isascii() and clean.isprintable()) and not (clean := _cleaned(clean)):
                continue
            if following != own and text_object_at(address, stop - 1) != own:
                return None
            if not _loose_box(address, begin, to_rect):
                return None
            left, top, right, bottom = self._rect_values
            if stop - begin > 1:
                if not _loose_box(address, stop - 1, to_rect):
                    return None
                other_left, other_top, other_right, _ = self._rect_values
                if other_top != top:
                    return None
                # For each word, comparisons take a third of the time of `min` and `max`.
                left = other_left if other_left < left else left  # noqa: FURB136
                right = other_right if other_right > right else right  # noqa: FURB136
            if top != last_top or not own:
                on = self._levels.get((own or 0, y - top)) or self._level(own, begin, y - top, setting.size)
                if on is None or on != (level or on):
                    return None
                level, last_top = on, top
            if right <= left and top <= bottom:
                return None
            if right >= x and left - x <= width:
                words.append(new(Span, (clean, left - x, right - x, style, True)))
        if level is None or setting.angle or links.are_near(sum(level) / 2):
            return None
        return words if level[1] >= 0 and level[0] <= self.page.size[1] else [], setting.size, level

    def words(self, text: str, start: int, end: int) -> list[Word]:
        """Return the words of `text[start:end]`, a part of the page's text, in parts, each cut where its style changes;
        without those outside of the visible part of the page, such as printers' marks."""
        spans = [match.span() for match in _WORD.finditer(text, start, end)]
        return self._words(text, spans, self._objects(spans), None)

    def _objects(self, spans: Sequence[tuple[int, int]]) -> list[int | None]:
        """Return the address of the text object in which each word begins."""
        first = text_object_at(self._address, spans[0][0]) if spans else None
        # PDFium numbers the characters of a text object one after the other.
        if first and text_object_at(self._address, spans[-1][1] - 1) == first:
            return [first] * len(spans)
        return [text_object_at(self._address, begin) for begin, _ in spans]

    def _words(
        self, text: str, spans: Sequence[tuple[int, int]], objects: Sequence[int | None], before: Word | None
    ) -> list[Word]:
        width, height = self.page.size
        words: list[Word] = []
        for place, (begin, stop) in enumerate(spans):
            first = objects[place]
            # PDFium numbers the characters of a text object one after the other.
            if stop - begin == 1 or first in (
                objects[place + 1] if place + 1 < len(spans) else None,
                text_object_at(self._address, stop - 1),
            ):
                part = self._part(text, begin, stop, first, before)
                parts = [part] if part else []
            else:
                parts = self._parts(text, begin, stop, first, before)
            words += [
                word
                for word in parts
                if word.right >= 0 and word.left <= width and word.bottom >= 0 and word.top <= height
            ]
        return _with_negations(words) if any(word.text == _NEGATION for word in words) else words

    def _parts(self, text: str, start: int, end: int, first: int | None, before: Word | None) -> list[Word]:
        """Return the word `text[start:end]`, which has several text objects, cut where its style changes."""
        parts: list[Word] = []
        begin, setting, spaced, last = start, self._setting(first, start), True, first
        for index in range(start + 1, end + 1):
            address = text_object_at(self._address, index) if index < end else 0
            other = self._setting(address, index) if index < end else None
            parted = address == last and setting.angle == 0 and self._is_parted(index, setting.size)
            last = address
            if parted or other is None or not (other is setting or other.is_like(setting)):
                part = self._part(text, begin, index, text_object_at(self._address, begin), before)
                if part:
                    parts.append(part._replace(spaced=spaced))
                begin, setting, spaced = index, other or setting, parted
        return parts

    def _is_parted(self, index: int, size: float) -> bool:
        """Whether a space separates the character from the one before it: PDFium overlooks some in a text object of two
        characters, with which groff sets the end of a word and the start of the next."""
        return self.box(index)[0] - self.box(index - 1)[2] > _SPACE * size

    def _part(self, text: str, start: int, end: int, address: int | None, before: Word | None) -> Word | None:
        clean = text[start:end]
        if not (clean.isascii() and clean.isprintable()):
            clean = _cleaned(clean)
        style, size, angle, unseen = self._setting(address, start)
        if unseen or not clean:
            return None
        if signs := _signs(style.font):
            clean = _NEGATED.sub(lambda match: _negated(match[1]), clean.translate(signs))
        left, top, right, bottom = self.box(start)
        loose_top, vertical = top, False
        if end - start > 1:
            # For each word, comparisons take a third of the time of `min` and `max`.
            other_left, other_top, other_right, other_bottom = self.box(end - 1)
            vertical = other_top > top + 0.5 * (bottom - top) and not clean.isascii() and angle == 0
            left = other_left if other_left < left else left  # noqa: FURB136
            top = other_top if other_top < top else top  # noqa: FURB136
            right = other_right if other_right > right else right  # noqa: FURB136
            bottom = other_bottom if other_bottom > bottom else bottom  # noqa: FURB136
        if right <= left and bottom <= top:
            if before is None:
                return Word(clean, left, top, right, bottom, size, style, angle, spaced=True)
            # Glyphs without an extent still have text: place it at the previous text.
            return before._replace(text=clean, spaced=True)
        if vertical and right - left < 2.5 * size and CJK.search(clean):
            return Word(clean, left, top, right, bottom, size, style, 90, spaced=True)
        if angle == 0:
            # Level glyphs of one text object have one base line if their boxes begin at one height.
            level = self._levels.get((address or 0, loose_top)) or self._level(address, start, loose_top, size)
            if level:
                top, bottom = level
        return Word(clean, left, top, right, bottom, size, style, angle, True)

    def _level(self, address: int | None, index: int, loose_top: float, size: float) -> tuple[float, float] | None:
        """Return the top and bottom of a word by its base line; None if PDFium does not know it."""
        if not _origin(self._address, index, *self._to_origin):
            return None
        x, y = self._sides[0].value, self._sides[1].value
        baseline = self._corner[1] - y if self._corner else self.page.displayed(x, y, x, y)[1]
        level = baseline - _ASCENT * size, baseline + DESCENT * size
        if address:
            self._levels[address, loose_top] = level
        return level

    def _setting(self, address: int | None, index: int) -> _Setting:
        setting = self._settings.get(address or 0)
        if setting is None:
            if not address:
                return _Setting(PLAIN, self._size(index, 1.0), 0)
            setting = self._new_setting(address, index)
            unseen = setting.size < _TINY_PT and is_hidden(ctypes.c_void_p(address))
            self._settings[address] = setting = setting._replace(unseen=True) if unseen else setting
        return setting

    def _new_setting(self, address: int, index: int) -> _Setting:
        style = self._fonts.style(ctypes.c_void_p(address))
        if not _matrix_of(self._address, index, self._to_matrix):
            return _Setting(style, self._size(index, 1.0), 0)
        a, b, c, d = self._matrix_values[:4]
        if _font_size(self._address, index) < 0:  # Such text is turned twice.
            a, b, c, d = -a, -b, -c, -d
        if b == 0 == c and a > 0:  # as most text is set
            return _Setting(style, self._size(index, abs(d)), self._upright)
        if abs(b) < 1e-3 * abs(a) and abs(c) > 0.1 * abs(d):
            style = style._replace(italic=True)
        angle = math.degrees(math.atan2(-b, a)) + self.page.rotation
        turned = round(angle / 90) * 90
        aslant = abs(angle - turned) > 5
        return _Setting(style, self._size(index, math.hypot(c, d)), -1 if aslant else turned % 360)

    def _size(self, index: int, scale: float) -> float:
        """Return the font's size as displayed, or one from a glyph's height if implausible (picture fonts)."""
        size = abs(float(_font_size(self._address, index))) * scale
        if not _tight_box(self._address, index, *self._to_sides):
            return max(size, 1.0)
        left, right, bottom, top = self._sides
        extent = max(abs(top.value - bottom.value), abs(right.value - left.value))
        if size > 0.1 and extent < 2.5 * size and (extent > 0.08 * size or extent <= 0.01):
            return size
        return max(extent / 0.7, 1.0)

    def box(self, index: int) -> tuple[float, float, float, float]:
        """Return the place of one character, as displayed; zeros if PDFium knows none."""
        if not _loose_box(self._address, index, self._to_rect):
            return (0.0, 0.0, 0.0, 0.0)
        left, top, right, bottom = self._rect_values
        if self._corner is None:
            return self.page.displayed(left, bottom, right, top)
        x, y = self._corner  # As above, without the call: most pages are not rotated.
        return (left - x, y - top, right - x, y - bottom)


def _with_negations(words: Sequence[Word]) -> list[Word]:
    """Return the words with each sign that a stroke negates as one character."""
    negated: list[Word] = []
    for word in words:
        if negated and negated[-1].text == _NEGATION:
            text = _negated(word.text[0]) + word.text[1:]
            word = word._replace(text=text, spaced=negated.pop().spaced)  # noqa: PLW2901
        negated.append(word)
    return negated


def _negated(sign: str) -> str:
    return normalize("NFC", sign + _NEGATION)


@lru_cache(maxsize=1_000)
def _signs(font: str) -> Mapping[int, int | str] | None:
    return next((signs for start, signs in _SIGNS.items() if font.startswith(start)), None)


def _cleaned(word: str) -> str:
    return _DROPPED.sub("", word).translate(_LIGATURES).replace("\u2010", "-")


def _last_word(line: Line) -> Word:
    text, left, right, style, _ = line.spans[-1]
    return Word(text, left, line.top, right, line.bottom, line.size, style, line.angle, spaced=True)


def _level_lines(words: Sequence[Span], size: float, level: tuple[float, float], ending: str) -> list[Line]:
    """Return what `pieces` and `as_line` make of words on one base line in one style."""
    gap, top, bottom = _GAP * size, *level
    starts = [
        0,
        *(n for n, (a, b) in enumerate(pairwise(words), 1) if b.left - a.right > gap or b.right < a.left - gap),
    ]
    lines = []
    for start, end in pairwise([*starts, len(words)]):
        piece = list(words[start:end])
        if ending and end == len(words) > start:
            piece[-1] = piece[-1]._replace(text=piece[-1].text + ending)
        if piece:
            left, right = min([word.left for word in piece]), max([word.right for word in piece])
            text = " ".join([word.text for word in piece]).strip()
            lines.append(Line(text, left, top, right, bottom, size, tuple(piece)))
    return lines


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
    rise = foot - word.foot - DESCENT * (size - word.size)
    if rise > 0.12 * size:
        return word.style._replace(shift=1)
    return word.style._replace(shift=-1) if rise < -0.08 * size else word.style

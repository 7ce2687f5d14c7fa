"""Judge the quality of a page's text layer: whether it makes sense, and whether the page shows it.

Each share is 0 to 1. A page with too little text to judge counts as good. The bounds are wide on purpose: text
recognition knows fewer languages than text layers use.
"""

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pypdfium2.raw as pdfium_c
from PIL import Image, ImageStat

from pipeline.reading.layout.model import Line
from pipeline.reading.pdf.pdfium import Page, quick, render_mode, text_object_at

_CONTROL = re.compile("[\x01\x03-\x08\x0e-\x1f\x80-\x9f]")  # \x02 is PDFium's hyphen at a line's end.
_REPEATED = re.compile(r"(\S)\1\1\1*|[.·_] [.·_] [.·_] (?:[.·_] )*")  # twice as fast as with `{3,}`
_SYMBOL = re.compile(r"[!-/:-@\[-`{-~¡-¿×÷]")
_VOWEL = re.compile("[aeiouyAEIOUY]")
_LETTER = re.compile("[a-zA-Z]")
_ACCENTED = re.compile("[À-ÖØ-öø-ÿ]")  # of Western encodings
_OTHER_LATIN = re.compile("[Ā-ɏḀ-ỿ]")
_PICTOGRAPH = re.compile("[\u2600-\u27bf]")  # ♥, ✓, ❶

_ASCII = re.compile("[\0-\x7f]+")
_ENOUGH = 200  # characters to judge by
_MOST = 20_000
_MAX_CONTROL = 0.08
_MAX_SYMBOLS = 0.65  # 0.5 in program code, 0.3 in tables of figures
_MIN_VOWELS = 0.18  # 0.34 to 0.5 in most languages with Latin letters, 0.26 in Welsh, 0.15 in English shifted by 29
_MAX_PICTOGRAPHS = 0.4  # 0.74 where a font names its letters after those of Zapf Dingbats
_MAX_ACCENTED = 0.6  # 0.12 in Icelandic, nearly all in Russian read as Western letters

_INK_DPI = 36
_MAX_INK_PIXELS = 400_000
_CONTRAST = 24  # of 255
_MAX_LINES = 300
_SAMPLES = 48
_HIDDEN = 0.3  # with this share of hidden text, the page is rendered
_WHITE = 250

_CHANNELS = [ctypes.c_uint() for _ in range(4)]
_TO_CHANNELS = list(map(ctypes.byref, _CHANNELS))
_fill_color = quick(pdfium_c.FPDFPageObj_GetFillColor, ctypes.c_int)


def score(page: Page, handle: Any, text: str, lines: Sequence[Line]) -> float:
    """Return the quality of an open page's text layer, 0 to 1. Renders the page only if its text may be hidden."""
    if not makes_sense(text[:_MOST]):
        return 0.0
    return inked_share(page, lines) if hidden_share(handle, len(text)) >= _HIDDEN else 1.0


def makes_sense(text: str) -> bool:
    """Whether the characters may be those of a language; True for short texts. Fonts without a Unicode map give wrong
    letters, signs or control characters."""
    visible = "".join(_REPEATED.sub("", text).split())
    if len(visible) < _ENOUGH:
        return True
    plain, others = visible.encode("ascii", "ignore"), "" if visible.isascii() else _ASCII.sub("", visible)
    if _count(_CONTROL, plain, others) > _MAX_CONTROL * len(visible):
        return False
    if _count(_SYMBOL, plain, others) > _MAX_SYMBOLS * len(visible):
        return False
    if len(_PICTOGRAPH.findall(others)) > _MAX_PICTOGRAPHS * len(visible):
        return False
    letters, accented = _count(_LETTER, plain), len(_ACCENTED.findall(others))
    if accented >= _ENOUGH and accented > _MAX_ACCENTED * (accented + letters):
        return False
    # If most letters are not Latin, the few Latin ones may be units and part numbers.
    few = letters < max(_ENOUGH, 0.5 * len(visible))
    vowels = _count(_VOWEL, plain) + accented + len(_OTHER_LATIN.findall(others))
    return few or vowels >= _MIN_VOWELS * letters


def _count(characters: re.Pattern[str], plain: bytes, others: str = "") -> int:
    """Count these characters in a text, which is given as its ASCII characters and its other ones."""
    rest = plain.translate(None, _in_ascii(characters))
    return len(plain) - len(rest) + len(characters.findall(others))


@cache
def _in_ascii(characters: re.Pattern[str]) -> bytes:
    return "".join(filter(characters.match, map(chr, range(128)))).encode()


def hidden_share(handle: Any, count: int) -> float:
    """Return the share of sampled characters that are invisible, transparent or white, 0 to 1; 0 if none is drawn.
    `count`: how many characters the page has."""
    sample = range(0, count, max(1, count // _SAMPLES))
    drawn = [address for index in sample if (address := text_object_at(handle, index))]
    hidden = {address: is_hidden(ctypes.c_void_p(address)) for address in set(drawn)}
    return sum(hidden[address] for address in drawn) / len(drawn) if drawn else 0.0


def is_hidden(raw: ctypes.c_void_p) -> bool:
    """Whether a text object is invisible, transparent or white."""
    mode = render_mode(raw)
    if mode in {pdfium_c.FPDF_TEXTRENDERMODE_INVISIBLE, pdfium_c.FPDF_TEXTRENDERMODE_CLIP}:
        return True
    if mode != pdfium_c.FPDF_TEXTRENDERMODE_FILL:
        return False
    if not _fill_color(raw, *_TO_CHANNELS):
        return False
    red, green, blue, alpha = (channel.value for channel in _CHANNELS)
    return bool(alpha < 5 or min(red, green, blue) >= _WHITE)


def inked_share(page: Page, lines: Sequence[Line]) -> float:
    """Render the page, and return the share of the lines' characters at whose place the picture shows something, 0 to
    1; 1 without characters."""
    picture = page.render(_INK_DPI, _MAX_INK_PIXELS).convert("L")
    scale = picture.width / page.size[0]
    step = max(1, len(lines) // _MAX_LINES)
    total = inked = 0
    for line in lines[::step]:
        total += len(line.text)
        inked += len(line.text) * _has_ink(picture, line, scale)
    return inked / total if total else 1.0


def _has_ink(picture: Image.Image, line: Line, scale: float) -> bool:
    """Whether the picture shows something at the line's place: its pixels differ clearly. Up to half a pixel around it
    may belong to a neighbour."""
    left, top = max(0, round(line.left * scale)), max(0, round(line.top * scale))
    right = min(picture.width, max(left + 1, round(line.right * scale)))
    bottom = min(picture.height, max(top + 1, round(line.bottom * scale)))
    if right <= left or bottom <= top:
        return False
    ((darkest, brightest),) = ImageStat.Stat(picture.crop((left, top, right, bottom))).extrema
    return brightest - darkest >= _CONTRAST

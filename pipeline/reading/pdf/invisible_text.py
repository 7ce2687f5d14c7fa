"""Write the words of a page as invisible text: a content stream for PDF that draws nothing and lets readers search.

One font with a single empty glyph serves all scripts, as in Tesseract's PDFs: the codes are UTF-16 units, and the
font's map to Unicode returns them. Characters beyond the basic plane get codes from the range of surrogates.
"""

import base64
import math
import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from pipeline.reading.layout.text import RIGHT_TO_LEFT, is_right_to_left

_TRUETYPE = (
    "c-oDS!AiqG5QhKFrbVl*6ja313LZp6K}32Gh1R>E51>n}4Vt9ER;V|R9>wSIpzq+J2VX)E>;pvfP>BC-qSOlFz)a?wot^nN5C96ef`r;TSX<v6)b"
    "0VX#OhH!&=DrlCf|@Zn*Qa948;fei9GK$^s%0(RhZw=H$4_|vtpI`3w_ZGI$aSngSckM`>nc0(ek6=KzAd!$dkv&D%3&4c_`hI`{ZiWYImrM=B$`"
    "=7_Ic}_tV$IsjW9iY5GPisfbuACK66o;vK0H>de%{cG9p3TXCo+J#l`Gl_KU}$l*WsWBLxws#mE7YU_>kt1o5WyUnYo8HN42rh_q6r;;R%$@9>rV"
    "!AhbJ@3zy7s?{;$^Kw2djXcsM0cEh1<NLPP$H#y-qx$|p%LN?`)Htv3(M!3sz2-#Tzx{6"
)
"""A TrueType font of 564 bytes, compressed: `.notdef` and an empty glyph, half as wide as high. It holds nothing of
other fonts."""
ASCENT, DESCENT, WIDTH = 800, -200, 500
_FIRST_SPARE, _SPARES = 0xD800, 2048
_RIGHTWARD = re.compile("[0-9A-Za-z\u0660-\u0669\u06f0-\u06f9]+(?:[.,:/-][0-9A-Za-z\u0660-\u0669\u06f0-\u06f9]+)*")
_BRACKETS = str.maketrans("()[]{}<>«»", ")(][}{><»«")
_LEAST_LENGTH, _MOST_SIZE = 0.5, 10_000.0


class TextLine(NamedTuple):
    """A line of text with its box on the displayed page, from the top left corner; `angle`: its clockwise turn of 0,
    90, 180 or 270 degrees.

    `places`: the start and the end of each word of `text` along the line, in thousandths of its length; empty if
    unknown."""

    text: str
    left: float
    top: float
    right: float
    bottom: float
    angle: int = 0
    places: Sequence[int] = ()


class Codes:
    """The codes of characters in the font, and its map back to Unicode."""

    def __init__(self) -> None:
        self._high: set[int] = set()
        self._spare: dict[str, int] = {}

    def encoded(self, text: str) -> bytes:
        """Return the text in codes of two bytes; leave out characters that get no code."""
        codes = bytearray()
        for character in text:
            code = ord(character)
            if code > 0xFFFF:
                if character not in self._spare and len(self._spare) == _SPARES:
                    continue
                code = self._spare.setdefault(character, _FIRST_SPARE + len(self._spare))
            elif 0xD800 <= code < 0xE000:
                continue
            else:
                self._high.add(code >> 8)
            codes += code.to_bytes(2, "big")
        return bytes(codes)

    def to_unicode(self) -> bytes:
        """Return the font's map to Unicode, for the codes in use."""
        ranges = [f"<{high:02X}00><{high:02X}FF><{high:02X}00>" for high in sorted(self._high)]
        singles = [
            f"<{code:04X}><{character.encode('utf-16-be').hex().upper()}>" for character, code in self._spare.items()
        ]
        body = "".join(
            f"{len(part)} begin{kind}\n" + "\n".join(part) + f"\nend{kind}\n"
            for kind, entries in (("bfrange", ranges), ("bfchar", singles))
            for part in (entries[at : at + 100] for at in range(0, len(entries), 100))
        )
        head = (
            "/CIDInit /ProcSet findresource begin\n12 dict begin\nbegincmap\n"
            "/CIDSystemInfo <</Registry (Adobe) /Ordering (UCS) /Supplement 0>> def\n"
            "/CMapName /Adobe-Identity-UCS def\n/CMapType 2 def\n"
            "1 begincodespacerange\n<0000><FFFF>\nendcodespacerange\n"
        )
        return f"{head}{body}endcmap\nCMapName currentdict /CMap defineresource pop\nend\nend\n".encode("ascii")


def font_file() -> bytes:
    """Return the TrueType font with the empty glyph."""
    return zlib.decompress(base64.b85decode(_TRUETYPE))


def content(
    lines: Iterable[TextLine], size: tuple[float, float], matrix: Sequence[float], lean: float, font: str, codes: Codes
) -> bytes:
    """Return the operators that write these lines; empty without any.

    `size`: width and height of the displayed page in points; `matrix`: turns points of the displayed page, from its
    bottom left corner upwards, into the page's own; `lean`: the degrees by which the picture leans clockwise, so that
    its lines are placed as if it did not. `font`: its name in the page's resources.
    """
    drawn = b""
    set_size = 0.0
    for line in lines:
        font_size, written = _line(line, size[1], codes)
        if written and font_size != set_size:
            set_size = font_size
            drawn += f"/{font} ".encode() + _numbers((font_size,)) + b" Tf\n"
        drawn += written
    if not drawn:
        return b""
    turn = b""
    if lean:
        cosine, sine = math.cos(math.radians(lean)), math.sin(math.radians(lean))
        x, y = size[0] / 2, size[1] / 2
        shift = (x - x * cosine - y * sine, y + x * sine - y * cosine)
        turn = _numbers((cosine, -sine, sine, cosine), 5) + b" " + _numbers(shift) + b" cm\n"
    return b"q\n" + _numbers(matrix) + b" cm\n" + turn + b"BT\n3 Tr\n" + drawn + b"ET\nQ\n"


def _line(line: TextLine, height: float, codes: Codes) -> tuple[float, bytes]:
    """Return the size of the font for a line, and the operators that write it; nothing if it has no place."""
    words = _visual(line.text)
    left, top, right, bottom = line.left, height - line.top, line.right, height - line.bottom
    across, down = right - left, top - bottom
    angle = line.angle
    if angle == 0 and down > 2 * across and len("".join(words)) > 1:
        angle = 90  # vertical writing
    length, size = (across, down) if angle in {0, 180} else (down, across)
    # Steps of a half save the operators that change the size.
    size = min(max(0.5, round(size * 2) / 2), _MOST_SIZE)
    if not words or length < _LEAST_LENGTH or not math.isfinite(length + size + left + top):
        return size, b""
    base = -DESCENT / 1000 * size
    rotation, start = {
        90: ((0, -1, 1, 0), (left + base, top)),
        180: ((-1, 0, 0, -1), (right, top - base)),
        270: ((0, 1, -1, 0), (right - base, bottom)),
    }.get(angle, ((1, 0, 0, 1), (left, bottom + base)))
    spans = _spans(words, () if words != line.text.split() else line.places, length)
    characters = sum(map(len, words))
    stretch = max(1, round(100 * sum(end - begin for begin, end in spans) / (characters * WIDTH / 1000 * size)))
    em = size * stretch / 100
    text, parts, pen = b"", [], 0.0
    for number, (word, (begin, _)) in enumerate(zip(words, spans, strict=True)):
        if move := round((pen - begin) / em * 100) * 10:
            parts += [_string(text), str(move).encode()]
            text = b""
            pen -= move / 1000 * em
        written = f"{word} " if number < len(words) - 1 else word
        text += codes.encoded(written)
        pen += len(written) * WIDTH / 1000 * em
    parts.append(_string(text))
    place = _numbers((stretch, *rotation, *start), 1).replace(b" ", b" Tz ", 1)
    return size, place + b" Tm[" + b"".join(parts) + b"]TJ\n"


def _visual(text: str) -> list[str]:
    """Return the words from left to right, as a page shows them: readers of PDF expect text read leftwards so."""
    words = text.split()
    if not RIGHT_TO_LEFT.search(text):
        return words
    leftward_line = is_right_to_left(text)
    ordered: list[str] = []
    for leftward, run in groupby(words, lambda word: bool(RIGHT_TO_LEFT.search(word))):
        group = list(run)
        shown = [_mirrored(word) for word in reversed(group)] if leftward else group
        ordered = [*shown, *ordered] if leftward_line else [*ordered, *shown]
    return ordered


def _mirrored(word: str) -> str:
    """Return a word read leftwards from its left end; numbers and Latin letters in it stay as they are."""
    return _RIGHTWARD.sub(lambda part: part[0][::-1], word[::-1].translate(_BRACKETS))


def _spans(words: Sequence[str], places: Sequence[int], length: float) -> list[tuple[float, float]]:
    """Return the start and end of each word along a line of this length; by their characters without `places`."""
    if len(places) == 2 * len(words):
        return [(places[at] * length / 1000, places[at + 1] * length / 1000) for at in range(0, len(places), 2)]
    share = length / max(1, sum(map(len, words)) + len(words) - 1)
    spans, at = [], 0
    for word in words:
        spans.append((at * share, (at + len(word)) * share))
        at += len(word) + 1
    return spans


def _string(data: bytes) -> bytes:
    escaped = data.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)").replace(b"\r", b"\\r")
    return b"(" + escaped + b")"


def _numbers(values: Iterable[float], digits: int = 2) -> bytes:
    return " ".join(
        f"{value:.{digits}f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}" for value in values
    ).encode()

"""Repair characters that TeX's fonts split or misname: accents over letters, and ligatures.

The text keeps the positions of PDFium's characters: a removed character becomes `GONE`, which words leave out.
"""

import ctypes
import re
import unicodedata
from itertools import islice
from typing import Any, NamedTuple

import pypdfium2.raw as pdfium_c

GONE = "\x01"

_ABOVE = {
    "\u02d8": "\u0306",
    "\u00a8": "\u0308",
    "\u00b4": "\u0301",
    "\u02ca": "\u0301",
    "`": "\u0300",
    "\u02cb": "\u0300",
    "\u02c6": "\u0302",
    "\u02dc": "\u0303",
    "\u02c7": "\u030c",
    "\u00af": "\u0304",
    "\u02d9": "\u0307",
    "\u02da": "\u030a",
    "\u02dd": "\u030b",
}
_BELOW = {"\u00b8": "\u0327", "\u02db": "\u0328"}
_COMBINING = {**_ABOVE, **_BELOW}
_MARK = re.compile(f"[{''.join(_COMBINING)}\u0300-\u030c\u0323-\u0328]")
_DOTLESS = {"\u0131": "i", "\u0237": "j"}
_MAX_MARKS = 200
_NEAR = 24  # characters before and after a mark that may be its letter
_FF = re.compile(r"(?<=[^\W\d_])\u21b5|\u21b5(?=[^\W\d_])")
_FFI = re.compile(rf"(?<=[a-z])[\0{GONE}](?=[a-z])")


class _Box(NamedTuple):
    left: float
    right: float
    bottom: float
    top: float


def repair(handle: Any, text: str) -> str:
    """Return the page's text with each letter and the mark drawn over it composed to one character, and lost ligatures
    restored. Its length stays the same: each removed character becomes `GONE`."""
    # Fonts that name "ff" as a carriage return have no name for "ffi" and "ffl"; the latter comes before vowels.
    if "\u21b5" in text and "\ufb00" in (text := _FF.sub("\ufb00", text)):
        plain = text
        text = _FFI.sub(lambda match: "\ufb04" if plain[match.end()] in "aeiouy" else "\ufb03", plain)
    marks = [match.start() for match in islice(_MARK.finditer(text), _MAX_MARKS)]
    if not marks:
        return text
    characters = list(text)
    for index in marks:
        _compose(handle, characters, index)
    return "".join(characters)


def _compose(handle: Any, characters: list[str], index: int) -> None:
    """Compose the mark at `index` with the letter that it overlaps, in `characters`, if Unicode has such a
    character."""
    mark = characters[index]
    if index and not characters[index - 1].isspace() and unicodedata.combining(mark):
        return  # A combining character after its letter needs no repair.
    box = _box(handle, index)
    if box is None:
        return
    for place in sorted(
        range(max(0, index - _NEAR), min(len(characters), index + _NEAR)), key=lambda p: abs(p - index)
    ):
        letter = _DOTLESS.get(characters[place], characters[place])
        if not letter.isalpha() or not _stands_on(box, _box(handle, place)):
            continue
        whole = unicodedata.normalize("NFC", letter + _COMBINING.get(mark, mark))
        if len(whole) == 1:
            characters[place] = whole
            _take_away(characters, index, place)
        return


def _stands_on(mark: _Box, letter: _Box | None) -> bool:
    """Whether the middle of the mark is above or below the letter, and near it."""
    if letter is None:
        return False
    middle, height = (mark.left + mark.right) / 2, letter.top - letter.bottom
    near = -0.8 * height < mark.bottom - letter.top < 0.8 * height or -0.8 * height < letter.bottom - mark.top < height
    return letter.left <= middle <= letter.right and near


def _take_away(characters: list[str], index: int, letter: int) -> None:
    """Replace the mark by `GONE`, and so the space that PDFium reports between it and its word."""
    characters[index] = GONE
    after = characters[index + 1] if index + 1 < len(characters) else " "
    if letter < index and index and characters[index - 1] == " " and (letter == index - 2 or not after.isalnum()):
        characters[index - 1] = GONE
    elif letter == index + 2 and after == " ":
        characters[index + 1] = GONE


def _box(handle: Any, index: int) -> _Box | None:
    sides = [ctypes.c_double() for _ in range(4)]
    if not pdfium_c.FPDFText_GetCharBox(handle, index, *sides):
        return None
    box = _Box(*(side.value for side in sides))
    return box if box.right > box.left else None

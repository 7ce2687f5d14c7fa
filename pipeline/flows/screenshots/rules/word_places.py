"""Where a word stands within a recognised line, of which only the line's own place is known."""

import unicodedata

from pipeline.flows.screenshots.rules.headings import Box, SeenLine

_NARROW, _WIDE = frozenset("fijlrtIJ1.,:;'|!()[]{}-/\\ `\"°·•"), frozenset("mwMWQOG@%&—…")
_UPRIGHT = 1.5
"""A line that is so many times as high as wide runs up or down: within it, nothing is told apart."""


def place_of(line: SeenLine, begin: int, end: int) -> Box:
    """The part of a line's place that these characters of its text take, by how wide characters usually are.

    A line up or down the frame is taken as a whole.
    """
    box = line.box
    assert box is not None
    if len(line.text) > 1 and box.bottom - box.top > _UPRIGHT * (box.right - box.left):
        return box
    widths = [_width(character) for character in line.text]
    whole = sum(widths)
    if not whole:
        return box
    across = (box.right - box.left) / whole
    left = box.left + sum(widths[:begin]) * across
    return Box(left, box.top, left + sum(widths[begin:end]) * across, box.bottom)


def _width(character: str) -> float:
    """In units of a small letter, as in fonts of screens whose characters differ in width."""
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.9
    if character in _NARROW:
        return 0.55
    if character in _WIDE:
        return 1.5
    return 1.25 if character.isupper() else 1.0

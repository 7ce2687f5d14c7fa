"""Markers of list items that recognition overlooks or joins to the next word.

The engine locates no bullet that stands far from its item, and reads "1. Connect" as "1.Connect".
"""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from pipeline.reading.layout.model import Box, around
from pipeline.reading.layout.text import CJK, ITEM
from pipeline.reading.ocr.direction import RecognisedText
from pipeline.reading.ocr.engine import Point, Quad
from pipeline.reading.ocr.orientation import SIZE_OF_HEIGHT

_BULLET = "•"
_JOINED = re.compile(
    r"(?:\(?\d{1,2}[.)]|\(?[a-z]\)|\*)(?=[^\W\d_]{2})|\d{1,2}(?:\.\d{1,2}){1,3}\.?(?=[A-ZÀ-ÖØ-Þ][a-zß-öø-ÿ])"
)
_CHINESE_ONE = "一"
_DASHED = re.compile(r"—\s?[a-zß-öø-ÿ]")
_FIRST, _SECOND = re.compile(r"[Il|][.)]\s?[^\W\d_]{2}"), re.compile(r"2[.)]")
_ROMAN = "II.", "II)"
_FAR, _NEAR, _ALONE = 3.5, 0.2, 0.6
"""In sizes: where a bullet may begin before its item, its space to the item, and the space before it."""
_WIDTHS, _HEIGHTS = (0.1, 0.8), (0.04, 0.6)
_SOLID = 0.68
"""The share of a bullet's box that is ink; less in a check box, a letter or a figure."""
_OFF = 0.25
"""In sizes, how far from the middle of its line a bullet is, and from the place of other bullets."""
_LONG = 1.5
"""In heights, a piece too short for an item; in sizes, how far apart aligned pieces may start."""
_DARK, _CONTRAST = 0.5, 20
"""The least darkness of a bullet: as a share of that of the letters, and in shades, of 255."""
_LEAST_PX = 8.0
"""A bullet of smaller type has too few pixels to show its shape."""


class _Mark(NamedTuple):
    """A bullet: its distance from the item, its width and height, in sizes, and its place across the page's text."""

    far: float
    width: float
    height: float
    start: float
    size: float


def marked(pieces: Sequence[RecognisedText], grey: Image.Image) -> list[RecognisedText]:
    """Return the pieces of a grey picture with the bullets before them, and with spaces after their markers."""
    spaced = [_spaced(piece) for piece in _mended(pieces)]
    marks = [None if ITEM.match(piece.text) else _mark(piece, grey) for piece in spaced]
    seen = [mark for mark in marks if mark]
    boxes = [around((x, y, x, y) for x, y in piece.corners) for piece in pieces]
    result = []
    for piece, mark in zip(spaced, marks, strict=True):
        if mark and sum(_are_alike(mark, other) for other in seen) > 1 and _is_free(piece, mark, boxes):
            result.append(_with_bullet(piece, mark))
        else:
            result.append(piece)
    return result


def _mended(pieces: Sequence[RecognisedText]) -> list[RecognisedText]:
    """Return the pieces with the signs that the engine mistook: a dash for a Chinese one in Latin text; a 1 for an I if
    a 2, but no II, begins another piece; shorter dashes before items, since long ones begin speech."""
    if sum(len(CJK.findall(piece.text)) - piece.text.startswith(_CHINESE_ONE) for piece in pieces) == 0:
        pieces = [_beginning(piece, _CHINESE_ONE, "—" if len(piece.text) > 1 else "–") for piece in pieces]
    unread = [piece for piece in pieces if piece.text.startswith(" ")]
    dashes = [piece for piece in pieces if _DASHED.match(piece.text)]
    roman = any(piece.text.startswith(_ROMAN) for piece in pieces)
    seconds = [] if roman else [piece for piece in pieces if _SECOND.match(piece.text)]
    result = []
    for piece in pieces:
        if piece.text.startswith(" ") and sum(_are_aligned(piece, other) for other in unread) > 1:
            result.append(_beginning(piece, " ", f"{_BULLET} "))
        elif _DASHED.match(piece.text) and sum(_are_aligned(piece, other) for other in dashes) > 1:
            result.append(_beginning(piece, "—", "–" if piece.text[1:2] == " " else "– "))
        elif _FIRST.match(piece.text) and any(
            _are_aligned(piece, other) and piece.text[1] == other.text[1] for other in seconds
        ):
            result.append(piece._replace(text=f"1{piece.text[1:]}"))
        else:
            result.append(piece)
    return result


def _beginning(piece: RecognisedText, old: str, new: str) -> RecognisedText:
    """Return the piece with the new sign in place of the old one, if it begins with that."""
    if not piece.text.startswith(old):
        return piece
    text = new + piece.text[len(old) :]
    joined = len(text.split()) - len(piece.text.split())
    return piece._replace(
        text=text, words=piece.words[:1] * joined + piece.words, places=() if joined else piece.places
    )


def _are_aligned(piece: RecognisedText, other: RecognisedText) -> bool:
    """Whether the pieces start at one place across the text."""
    size = SIZE_OF_HEIGHT * math.dist(piece.corners[1], piece.corners[2])
    return abs(_start(piece.corners) - _start(other.corners)) < _LONG * size


def _start(corners: Quad, far: float = 0.0) -> float:
    """Return the place across the text of a point that is so many pixels before its start."""
    (ax, ay), (bx, by), *_ = corners
    turn = math.atan2(by - ay, bx - ax)
    return ax * math.cos(turn) + ay * math.sin(turn) - far


def _spaced(piece: RecognisedText) -> RecognisedText:
    match = _JOINED.match(piece.text)
    if not match:
        return piece
    first = piece.text.split()[0]
    words, places = piece.words, piece.places
    if len(places) > 1:
        cut = places[0] + round((places[1] - places[0]) * match.end() / len(first))
        places = (places[0], cut, cut, *places[1:])
    return piece._replace(
        text=f"{match.group()} {piece.text[match.end() :]}", words=(*words[:1], *words), places=places
    )


def _mark(piece: RecognisedText, grey: Image.Image) -> _Mark | None:
    """Return the mark that stands alone before a piece, in the middle of its line; None without one."""
    import numpy as np  # noqa: PLC0415  # only recognised pages need it

    a, b, c, d = piece.corners
    width, height = math.dist(a, b), math.dist(b, c)
    size = SIZE_OF_HEIGHT * height
    if width < _LONG * height or size < _LEAST_PX:
        return None
    # The piece's first letter shows how dark its ink is; beyond the picture's edge is paper.
    shares = (-_FAR * size / width, size / width)
    (left, right), (lower_left, lower_right) = ([_along(*side, share) for share in shares] for side in ((a, b), (d, c)))
    corners = (*left, *lower_left, *lower_right, *right)
    across, down, edge = round((_FAR + 1) * size), round(height), round(_FAR * size)
    straight = grey.transform((across, down), Image.Transform.QUAD, corners, Image.Resampling.BILINEAR, fillcolor=255)
    shades = np.asarray(straight)
    ink = np.median(shades) - shades.astype(np.float32)
    before = ink[:, :edge] > max(_DARK * float(np.percentile(ink, 99)), _CONTRAST)
    runs = [run for run in _runs(before.any(axis=0)) if run[0] < edge - _NEAR * size]
    first, last = runs[-1] if runs else (0, edge)
    if edge - last < _NEAR * size or first - (runs[-2][1] if len(runs) > 1 else 0) < _ALONE * size:
        return None
    rows = before[:, first:last].any(axis=1).nonzero()[0]
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    wide, high = (last - first) / size, (bottom - top) / size
    is_round = _WIDTHS[0] < wide < _WIDTHS[1] and _HEIGHTS[0] < high < _HEIGHTS[1]
    is_solid = float(before[top:bottom, first:last].mean()) >= _SOLID
    if not (is_round and is_solid and abs(top + bottom - down) < 2 * _OFF * size):
        return None
    far = (edge - first) / size
    return _Mark(far, wide, high, _start(piece.corners, far * size), size)


def _runs(inked: Any) -> list[tuple[int, int]]:
    """Return (first, end) of each run of columns with ink."""
    runs: list[tuple[int, int]] = []
    for column in inked.nonzero()[0].tolist():
        if runs and runs[-1][1] == column:
            runs[-1] = (runs[-1][0], column + 1)
        else:
            runs.append((column, column + 1))
    return runs


def _are_alike(mark: _Mark, other: _Mark) -> bool:
    off = _OFF * mark.size
    return (
        abs(mark.start - other.start) < off
        and abs(mark.width - other.width) < _OFF / 2
        and abs(mark.height - other.height) < _OFF / 2
    )


def _is_free(piece: RecognisedText, mark: _Mark, boxes: Sequence[Box]) -> bool:
    """Whether the mark is not in the box of a text."""
    a, b, c, d = piece.corners
    width = math.dist(a, b)
    x = y = 0.0
    for start, end in ((a, b), (d, c)):
        at = _along(start, end, (mark.width / 2 - mark.far) * mark.size / width)
        x, y = x + at[0] / 2, y + at[1] / 2
    return not any(left < x < right and top < y < bottom for left, top, right, bottom in boxes)


def _with_bullet(piece: RecognisedText, mark: _Mark) -> RecognisedText:
    a, b, c, d = piece.corners
    width = math.dist(a, b)
    more = mark.far * mark.size / width
    whole = 1 + more
    places = piece.places and (
        0,
        round(1000 * mark.width * mark.size / width / whole),
        *(round((place + 1000 * more) / whole) for place in piece.places),
    )
    sure = (1.0, *piece.words) if piece.words else ()
    corners = (_along(a, b, -more), b, c, _along(d, c, -more))
    return RecognisedText(f"{_BULLET} {piece.text}", corners, sure, places)


def _along(start: Point, end: Point, share: float) -> Point:
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])

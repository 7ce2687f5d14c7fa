"""Measure the type of recognised lines in the picture: the size of their letters and the weight of their strokes.

The boxes of lines include ascenders, descenders and some space, which differ by a tenth from line to line. The height
of small letters differs by a hundredth.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from PIL import Image

from pipeline.reading.layout.model import Line
from pipeline.reading.ocr.direction import RecognisedText

_SMALL, _CAPITALS = 0.45, 0.69
"""The heights of small letters without ascenders, and of capitals, in sizes of their type."""
_SMALL_LETTER, _OTHER = re.compile(r"[a-zß-öø-ÿ]"), re.compile(r"[A-ZÀ-ÖØ-Þ0-9]")
_NO_CAPITALS = re.compile(r"[^\W\d_A-ZÀ-ÖØ-Þ]|[,;()\[\]{}/|@$_]")
_FEWEST = 4
"""Fewer letters of a kind show no type."""
_MOSTLY = 3
"""So many small letters for each capital or figure: with more capitals, rows through these seem to be small letters."""
_LEAST_PX = 6.0
_SMALL_INK, _CAPITAL_INK = 0.45, 0.2
"""The least ink of a row through small letters, and through capitals, as a share of the rows with the most."""
_CONTRAST = 20
"""Between ink and paper, of 255 shades."""
_PAPER = 0.15
"""Differences up to this share of the blackest ink are paper."""
_INNER = 0.25
"""The share of the letters' height, at their top and at their bottom, where curves and serifs widen strokes."""
_FAR = 1.8
"""How many times a measured size may be that of the box, or the box's the measured one."""
_RULED = 0.9
"""A row with ink over this share of its width is a rule."""
_EVEN = 0.1
"""Weights that differ more than this from line to line are chance."""


class _Type(NamedTuple):
    """A type's size in pixels and the width of its upright strokes in sizes; `small`: measured by small letters."""

    size: float
    weight: float
    small: bool


def typed(lines: Sequence[Line], pieces: Sequence[RecognisedText], grey: Image.Image) -> list[Line]:
    """Return the lines with the size and the weight of their type, where a grey picture shows it. `pieces`: the text of
    each line, with its corners in the picture's pixels."""
    types = [_measured(piece, grey) for piece in pieces]
    known = [(line, kind) for line, kind in zip(lines, types, strict=True) if kind and kind.small]
    scale = _median((line.size / kind.size, len(line.text)) for line, kind in known)
    usual = _median((kind.weight, len(line.text)) for line, kind in known)
    spread = _median((abs(kind.weight / usual - 1), len(line.text)) for line, kind in known)
    result = []
    for line, kind in zip(lines, types, strict=True):
        if kind and line.size / _FAR < scale * kind.size < line.size * _FAR:
            weight = kind.weight / usual if spread < _EVEN else 1.0
            result.append(line._replace(size=scale * kind.size, weight=weight))
        else:
            result.append(line)
    return result


def _measured(piece: RecognisedText, grey: Image.Image) -> _Type | None:
    """Return the type of a recognised text; None if it does not show."""
    import numpy as np  # noqa: PLC0415  # only recognised pages need it

    letters = len(_SMALL_LETTER.findall(piece.text))
    small = letters >= max(_FEWEST, _MOSTLY * len(_OTHER.findall(piece.text)))
    capitals = sum(map(str.isupper, piece.text)) >= _FEWEST and not _NO_CAPITALS.search(piece.text)
    a, b, c, d = piece.corners
    width, height = round(math.dist(a, b)), round(math.dist(b, c))
    if not (small or capitals) or width < height or height < _LEAST_PX:
        return None
    straight = grey.transform((width, height), Image.Transform.QUAD, (*a, *d, *c, *b), Image.Resampling.BILINEAR)
    ink = np.asarray(straight, np.float32)
    ink = np.abs(ink - np.median(ink))
    black = np.percentile(ink, 98)
    if black < _CONTRAST:
        return None
    ink = np.clip((ink / black - _PAPER) / (1 - _PAPER), 0.0, 1.0)
    rows = ink.sum(axis=1)
    rows[rows > _RULED * width] = 0.0
    most = np.sort(rows)[-max(3, height // 4) :].mean()
    band = _band(rows, (_SMALL_INK if small else _CAPITAL_INK) * most)
    if band is None:
        return None
    top, bottom = band
    size = (bottom - top) / (_SMALL if small else _CAPITALS)
    edge = _INNER * (bottom - top)
    inner = ink[math.ceil(top + edge) : max(math.ceil(top + edge) + 1, int(bottom - edge))]
    dark = inner > 0.5
    strokes = int((dark[:, 1:] & ~dark[:, :-1]).sum())
    return _Type(size, float(inner.sum()) / strokes / size, small) if strokes else None


def _band(rows: Any, least: float) -> tuple[float, float] | None:
    """Return the top and the bottom, between pixels, of the rows with that much ink around the middle; None without
    any, or if they reach an edge: then the ink belongs to a frame or to other lines as well."""
    height = len(rows)
    first = last = max(range(height // 4, height - height // 4), key=lambda row: rows[row])
    if rows[first] < least:
        return None
    while first > 0 and rows[first - 1] >= least:
        first -= 1
    while last < height - 1 and rows[last + 1] >= least:
        last += 1
    if first == 0 or last == height - 1 or last - first < 2:
        return None
    above = (rows[first] - least) / (rows[first] - rows[first - 1])
    below = (rows[last] - least) / (rows[last] - rows[last + 1])
    return float(first + 0.5 - above), float(last + 0.5 + below)


def _median(weighed: Iterable[tuple[float, int]]) -> float:
    """Return the median of values with weights; 1 without any."""
    ordered = sorted(weighed)
    half, passed = sum(weight for _, weight in ordered) / 2, 0
    for value, weight in ordered:
        passed += weight
        if passed >= half:
            return value
    return 1.0

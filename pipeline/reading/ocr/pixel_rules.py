"""Find the drawn rules in a page's picture by morphological opening: long, thin, straight and dark."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from PIL import Image

from pipeline.reading.layout.model import Line, Rule

_MAX_RULES = 2_000
_LEAST_PX = 20
_LONG, _HIGH = 3.0, 2.0  # text heights; strokes of letters are shorter
_THICK = 0.4  # text heights
_SLOPE = 0.02  # of a rule's length, on a page that is not flat
_BREAK = 0.5  # text heights of a gap inside a rule, at most
_CONTRAST = 12  # shades of grey by which a rule is darker than its surroundings
_EDGE = 0.3  # text heights between a line's edge and its letters


def find(picture: Image.Image, lines: Sequence[Line], lean: float) -> list[Rule]:
    """Return the rules in an RGB picture, in its pixels, placed as if it did not lean.

    `lean`: the degrees that it leans clockwise. `lines`: the picture's text, whose height decides which rules are long;
    without lines there are no rules. Strokes of text are left out. Returns at most the longest `_MAX_RULES`."""
    heights = [line.bottom - line.top for line in lines if line.angle in {0, 180}]
    heights += [line.right - line.left for line in lines if line.angle in {90, 270}]
    if not heights:
        return []
    height = max(4.0, median(heights))
    dark = _dark(picture, height, lean)
    rules = [*_straight(dark, height, _LONG, across=True), *_straight(dark, height, _HIGH, across=False)]
    rules.sort(key=lambda rule: rule.left - rule.right + rule.top - rule.bottom)
    return _without_strokes(rules[:_MAX_RULES], lines)


def _dark(picture: Image.Image, height: float, lean: float) -> Any:
    """Return white where the straightened picture is darker than its surroundings, black elsewhere."""
    import cv2  # noqa: PLC0415  (not needed for text layers)
    import numpy as np  # noqa: PLC0415  (as above)

    grey = np.asarray(picture.convert("L"))
    if lean:
        rows, columns = grey.shape
        turn = cv2.getRotationMatrix2D((columns / 2, rows / 2), lean, 1.0)
        grey = cv2.warpAffine(grey, turn, (columns, rows), borderMode=cv2.BORDER_REPLICATE)
    around = 2 * max(7, round(height)) + 1
    return cv2.adaptiveThreshold(grey, 255, cv2.ADAPTIVE_THRESH_MEAN_C, cv2.THRESH_BINARY_INV, around, _CONTRAST)


def _straight(dark: Any, height: float, least: float, *, across: bool) -> Iterator[Rule]:
    """Yield the horizontal or vertical rules that are at least `least` text heights long."""
    import cv2  # noqa: PLC0415  (not needed for text layers)

    def bar(pixels: float) -> Any:
        length = 2 * round(pixels / 2) + 1  # An even length would shift the result.
        return cv2.getStructuringElement(cv2.MORPH_RECT, (length, 1) if across else (1, length))

    length = max(_LEAST_PX, least * height)
    opened = cv2.morphologyEx(dark, cv2.MORPH_OPEN, bar(length))
    closed = cv2.morphologyEx(opened, cv2.MORPH_CLOSE, bar(_BREAK * height))
    count, _, boxes, _ = cv2.connectedComponentsWithStats(closed, connectivity=8)
    thick = max(4.0, _THICK * height)
    for left, top, width, depth, pixels in boxes[1:count].tolist():
        along, beside = (width, depth) if across else (depth, width)
        if pixels > thick * along or beside > thick + _SLOPE * along:
            continue
        x, y = left + width / 2, top + depth / 2
        yield Rule(left, y, left + width, y) if across else Rule(x, top, x, top + depth)


def _without_strokes(rules: Sequence[Rule], lines: Sequence[Line]) -> list[Rule]:
    """Drop the rules inside a line of text: part of a large letter, a dash, or a strikethrough."""
    import numpy as np  # noqa: PLC0415  (not needed for text layers)

    left, top, right, bottom = np.array([line.box for line in lines], dtype=float).T
    edge = _EDGE * (bottom - top)
    kept = []
    for rule in rules:
        middle = (rule.top + rule.bottom) / 2
        inside = (top + edge < middle) & (middle < bottom - edge)
        inside &= (left - edge < rule.left) & (rule.right < right + edge)
        inside &= (top - edge < rule.top) & (rule.bottom < bottom + edge)
        if not inside.any():
            kept.append(rule)
    return kept

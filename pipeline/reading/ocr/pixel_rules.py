"""Rules that are part of a page's picture: long, thin, straight and dark, found by morphological opening."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from PIL import Image

from pipeline.reading.layout.model import Line, Rule

_MAX_RULES = 2_000
_LEAST_PX = 20
_LONG, _HIGH = 3.0, 2.0  # text heights: no stroke of a letter is as long
_THICK = 0.4  # text heights
_BREAK = 0.5  # text heights by which a rule may be broken off
_CONTRAST = 12  # shades of grey by which a rule is darker than what is around it
_EDGE = 0.3  # text heights from the edge of a line, further inside of which its letters are


def find(picture: Image.Image, lines: Sequence[Line], lean: float) -> list[Rule]:
    """The rules in an RGB picture with these lines, in its pixels, where they would be if it did not lean.

    `lean`: by how many degrees it leans clockwise. At most the longest `_MAX_RULES`; none without lines, whose height
    says what is long. Not those that are a stroke of a line's text."""
    heights = [line.bottom - line.top for line in lines if line.angle in {0, 180}]
    heights += [line.right - line.left for line in lines if line.angle in {90, 270}]
    if not heights:
        return []
    height = max(4.0, median(heights))
    dark = _dark(picture, height, lean)
    found = [*_straight(dark, height, _LONG, across=True), *_straight(dark, height, _HIGH, across=False)]
    found.sort(key=lambda rule: rule.left - rule.right + rule.top - rule.bottom)
    return _without_strokes(found[:_MAX_RULES], lines)


def _dark(picture: Image.Image, height: float, lean: float) -> Any:
    """White where the straightened picture is darker than around, black elsewhere."""
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
    """The horizontal or vertical rules that are at least `least` text heights long."""
    import cv2  # noqa: PLC0415  (not needed for text layers)

    def bar(pixels: float) -> Any:
        length = 2 * round(pixels / 2) + 1  # With an even length, what is found is shifted.
        return cv2.getStructuringElement(cv2.MORPH_RECT, (length, 1) if across else (1, length))

    length = max(_LEAST_PX, least * height)
    opened = cv2.morphologyEx(dark, cv2.MORPH_OPEN, bar(length))
    closed = cv2.morphologyEx(opened, cv2.MORPH_CLOSE, bar(_BREAK * height))
    count, _, boxes, _ = cv2.connectedComponentsWithStats(closed, connectivity=8)
    for left, top, width, depth, _ in boxes[1:count].tolist():
        if (depth if across else width) > max(4.0, _THICK * height):
            continue
        x, y = left + width / 2, top + depth / 2
        yield Rule(left, y, left + width, y) if across else Rule(x, top, x, top + depth)


def _without_strokes(rules: Sequence[Rule], lines: Sequence[Line]) -> list[Rule]:
    """The rules that do not lie within a line: part of a large letter, a dash, or what is struck out."""
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

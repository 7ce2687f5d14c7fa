"""Choose pictures on PDF pages: charts, screenshots and stamps contain text that the text layer lacks."""

from collections.abc import Sequence
from difflib import SequenceMatcher

from pipeline.reading.layout.model import Box, Line, area, around, holds

Found = tuple[Box, int]
"""The box of a picture and the number of its pixels."""

_MIN_SHARE = 0.01  # of the page's area: a heading set as a picture
_WHOLE_PAGE = 0.9  # of the page's area: a scan, or a background
_MIN_PIXELS = 60_000  # fewer are icons
# A picture is a background if text lines cover this share of it:
_BACKGROUND_COVER, _BACKGROUND_LINES = 0.05, 3  # with at least this many lines
_BANNER_COVER = 0.3  # with any number of lines
_ALIKE = 0.5
_TOUCHING_PT = 2.0
_MAX_PIECES = 200


def worth_reading(found: Sequence[Found], size: tuple[float, float], lines: Sequence[Line]) -> list[Box]:
    """Return the boxes of the page's pictures that are large enough for text and are not the background of `lines`, the
    page's known text. `size`: the page's width and height."""
    return [
        box
        for box, pixels in _on_page(found, size)
        if area(box) >= _MIN_SHARE * size[0] * size[1] and pixels >= _MIN_PIXELS and not _is_background(box, lines)
    ]


def _is_background(box: Box, lines: Sequence[Line]) -> bool:
    """Whether the picture is the background of text: a template's, or a scan with its text layer."""
    inside = [line for line in lines if holds(box, line)]
    cover = sum(_shared_area(box, line.box) for line in inside) / max(area(box), 1e-9)
    return cover >= _BANNER_COVER or (cover >= _BACKGROUND_COVER and len(inside) >= _BACKGROUND_LINES)


def worth_keeping(found: Sequence[Found], size: tuple[float, float]) -> list[Box]:
    """Return the boxes of the page's pictures that are neither icons nor the whole page, from top to bottom."""
    least, most = (share * size[0] * size[1] for share in (_MIN_SHARE, _WHOLE_PAGE))
    boxes = [box for box, _ in _on_page(found, size) if least <= area(box) <= most]
    return sorted(boxes, key=lambda box: (box[1], box[0]))


def new_lines(seen: Sequence[Line], known: Sequence[Line]) -> list[Line]:
    """Return the lines of `seen` that do not repeat a line of `known`: text drawn over a picture is recognised too."""
    return [line for line in seen if not any(_lies_on(line, other) and _reads_like(line, other) for other in known)]


def _lies_on(line: Line, other: Line) -> bool:
    return holds(other.box, line) or _shared_area(line.box, other.box) > 0.5 * area(line.box)


def _reads_like(line: Line, other: Line) -> bool:
    """Whether both may be the same words: recognition errs, and a picture may hide other text below it."""
    a, b = ("".join(text.casefold().split()) for text in (line.text, other.text))
    return a in b or SequenceMatcher(None, a, b, autojunk=False).ratio() >= _ALIKE


def _on_page(found: Sequence[Found], size: tuple[float, float]) -> list[Found]:
    """Return the pictures, cut at the edges of the page; touching ones are merged."""

    def cut(box: Box) -> Box:
        left, right = (min(max(x, 0.0), size[0]) for x in (box[0], box[2]))
        top, bottom = (min(max(y, 0.0), size[1]) for y in (box[1], box[3]))
        return (left, top, right, bottom)

    return merged([(cut(box), pixels) for box, pixels in found])


def merged(pictures: Sequence[Found]) -> list[Found]:
    """Return the pictures with touching ones as one picture that has the pixels of all: programs cut
    large pictures into strips. If there are more than 200, all become one."""

    def united(parts: Sequence[Found]) -> Found:
        return around(box for box, _ in parts), sum(pixels for _, pixels in parts)

    if len(pictures) > _MAX_PIECES:
        return [united(pictures)]
    result: list[Found] = []
    for picture in pictures:
        grown = picture
        while touching := [other for other in result if _touch(other[0], grown[0])]:
            result = [other for other in result if other not in touching]
            grown = united([grown, *touching])
        result.append(grown)
    return result


def _touch(a: Box, b: Box) -> bool:
    apart = max(a[0], b[0]) - min(a[2], b[2]), max(a[1], b[1]) - min(a[3], b[3])
    return max(apart) <= _TOUCHING_PT


def _shared_area(a: Box, b: Box) -> float:
    return area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))

"""Pictures on pages that have a text layer too: charts, screenshots and scans with a stamp hold text of their own."""

import ctypes
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Any

import pypdfium2.raw as pdfium_c
from pypdfium2 import PdfMatrix

from pipeline.reading.layout.model import Line
from pipeline.reading.pdfium import Box, Page

_MIN_SHARE = 0.01  # of the page's area: a heading set as a picture
_WHOLE_PAGE = 0.9  # of the page's area: a scan, or a background
_MIN_PIXELS = 60_000  # fewer are icons
_BACKGROUND_COVER = 0.05  # share of a picture under text lines, from which it is a sheet that they stand on,
_BACKGROUND_LINES = 3  # if there are as many of them,
_BANNER_COVER = 0.3  # and from which even one is enough
_ALIKE = 0.5
_TOUCHING_PT = 2.0
_MAX_PIECES = 200
_MAX_OBJECTS = 20_000
_MAX_DEPTH = 4


def worth_reading(page: Page, lines: Sequence[Line]) -> list[Box]:
    """Boxes of the page's pictures that may hold text which is not in `lines`."""
    pictures = on_page(page)
    if not pictures:
        return []
    width, height = page.size
    least = _MIN_SHARE * width * height
    found = []
    for box, pixels in merged([(clipped(box, width, height), pixels) for box, pixels in pictures]):
        if area(box) >= least and pixels >= _MIN_PIXELS and not _is_background(box, lines):
            found.append(box)
    return found


def worth_keeping(page: Page) -> list[Box]:
    """Boxes of the page's pictures that are no icons and not the page itself, from top to bottom."""
    width, height = page.size
    least, most = _MIN_SHARE * width * height, _WHOLE_PAGE * width * height
    boxes = [box for box, _ in merged([(clipped(box, width, height), pixels) for box, pixels in on_page(page)])]
    return sorted((box for box in boxes if least <= area(box) <= most), key=lambda box: (box[1], box[0]))


def on_page(page: Page) -> list[tuple[Box, int]]:
    """(box, pixels) of every picture on the page, also inside of groups of objects."""
    found = []
    for raw, matrices in _objects(page.raw, pdfium_c.FPDFPage_CountObjects, pdfium_c.FPDFPage_GetObject):
        width, height = ctypes.c_uint(), ctypes.c_uint()
        left, bottom, right, top = (ctypes.c_float() for _ in range(4))
        if not pdfium_c.FPDFPageObj_GetBounds(raw, left, bottom, right, top):
            continue
        pdfium_c.FPDFImageObj_GetImagePixelSize(raw, width, height)
        bounds = (left.value, bottom.value, right.value, top.value)
        for matrix in matrices:
            bounds = matrix.on_rect(*bounds)
        found.append((page.displayed(*bounds), width.value * height.value))
    return found


def _objects(parent: Any, count: Any, get: Any, depth: int = 0) -> Iterator[tuple[Any, list[PdfMatrix]]]:
    """Raw picture objects below `parent`, each with the matrices of the groups around it, from the innermost."""
    # Drawings may have a million objects: what comes after these many is not looked at.
    for index in range(min(count(parent), _MAX_OBJECTS)):
        raw = get(parent, index)
        kind = pdfium_c.FPDFPageObj_GetType(raw)
        if kind == pdfium_c.FPDF_PAGEOBJ_IMAGE:
            yield raw, []
        elif kind == pdfium_c.FPDF_PAGEOBJ_FORM and depth < _MAX_DEPTH:
            matrix = pdfium_c.FS_MATRIX()
            pdfium_c.FPDFPageObj_GetMatrix(raw, matrix)
            inner = _objects(raw, pdfium_c.FPDFFormObj_CountObjects, pdfium_c.FPDFFormObj_GetObject, depth + 1)
            for picture, matrices in islice(inner, _MAX_PIECES):
                yield picture, [*matrices, PdfMatrix.from_raw(matrix)]


def merged(pictures: Sequence[tuple[Box, int]]) -> list[tuple[Box, int]]:
    """The pictures with those that touch made one: programs cut large pictures into strips."""
    if len(pictures) > _MAX_PIECES:
        return [(_around([picture[0] for picture in pictures]), sum(picture[1] for picture in pictures))]
    found: list[tuple[Box, int]] = []
    for picture in pictures:
        grown = picture
        while touching := [other for other in found if _touch(other[0], grown[0])]:
            found = [other for other in found if other not in touching]
            parts = [grown, *touching]
            grown = (_around([part[0] for part in parts]), sum(part[1] for part in parts))
        found.append(grown)
    return found


def new_lines(seen: Sequence[Line], known: Sequence[Line]) -> list[Line]:
    """The lines of `seen` that do not lie on one of `known`: text drawn over a picture is recognised with it."""
    return [line for line in seen if not any(_lies_on(line, other) and _reads_like(line, other) for other in known)]


def clipped(box: Box, width: float, height: float) -> Box:
    """The part of the box that is on a page of this size; without area where there is none."""
    left, right = (min(max(x, 0.0), width) for x in (box[0], box[2]))
    top, bottom = (min(max(y, 0.0), height) for y in (box[1], box[3]))
    return (left, top, right, bottom)


def area(box: Box) -> float:
    """The box's area; 0 where its sides are the wrong way round."""
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _around(boxes: Sequence[Box]) -> Box:
    return (
        min(box[0] for box in boxes),
        min(box[1] for box in boxes),
        max(box[2] for box in boxes),
        max(box[3] for box in boxes),
    )


def _touch(a: Box, b: Box) -> bool:
    apart = max(a[0], b[0]) - min(a[2], b[2]), max(a[1], b[1]) - min(a[3], b[3])
    return max(apart) <= _TOUCHING_PT


def _is_background(box: Box, lines: Sequence[Line]) -> bool:
    """Whether text stands on the picture as on a sheet: a template's background, or a scan with its text layer."""
    inside = [line for line in lines if _is_inside(line, box)]
    cover = sum(_shared_area(box, _box(line)) for line in inside) / max(area(box), 1e-9)
    return cover >= _BANNER_COVER or (cover >= _BACKGROUND_COVER and len(inside) >= _BACKGROUND_LINES)


def _is_inside(line: Line, box: Box) -> bool:
    """Whether the middle of the line is in the box; its edges may be a neighbour's."""
    x, y = (line.left + line.right) / 2, (line.top + line.bottom) / 2
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


def _lies_on(line: Line, other: Line) -> bool:
    return _is_inside(line, _box(other)) or _shared_area(_box(line), _box(other)) > 0.5 * area(_box(line))


def _reads_like(line: Line, other: Line) -> bool:
    """Whether both may be the same words: recognition errs, and text may hide behind a picture of other text."""
    a, b = _folded(line.text), _folded(other.text)
    return a in b or SequenceMatcher(None, a, b, autojunk=False).ratio() >= _ALIKE


def _folded(text: str) -> str:
    return "".join(text.casefold().split())


def _shared_area(a: Box, b: Box) -> float:
    return area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))


def _box(line: Line) -> Box:
    return (line.left, line.top, line.right, line.bottom)

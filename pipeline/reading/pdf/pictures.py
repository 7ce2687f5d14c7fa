"""Find pictures on PDF pages: charts, screenshots and stamps contain text that the page's text layer lacks."""

import ctypes
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Any

import pypdfium2.raw as pdfium_c
from pypdfium2 import PdfMatrix

from pipeline.reading.layout.model import Line, area, around, holds
from pipeline.reading.pdf.pdfium import Box, Page

_MIN_SHARE = 0.01  # of the page's area: a heading set as a picture
_WHOLE_PAGE = 0.9  # of the page's area: a scan, or a background
_MIN_PIXELS = 60_000  # fewer are icons
# A picture is a background if text lines cover this share of it:
_BACKGROUND_COVER, _BACKGROUND_LINES = 0.05, 3  # with at least this many lines
_BANNER_COVER = 0.3  # with any number of lines
_ALIKE = 0.5
_TOUCHING_PT = 2.0
_MAX_PIECES = 200
_MAX_OBJECTS = 20_000
_MAX_DEPTH = 4


def worth_reading(page: Page, lines: Sequence[Line]) -> list[Box]:
    """Return the boxes of the page's pictures that are large enough for text and are not the background of `lines`, the
    page's known text."""
    width, height = page.size
    return [
        box
        for box, pixels in _on_page(page)
        if area(box) >= _MIN_SHARE * width * height and pixels >= _MIN_PIXELS and not _is_background(box, lines)
    ]


def _is_background(box: Box, lines: Sequence[Line]) -> bool:
    """Whether the picture is the background of text: a template's, or a scan with its text layer."""
    inside = [line for line in lines if holds(box, line)]
    cover = sum(_shared_area(box, line.box) for line in inside) / max(area(box), 1e-9)
    return cover >= _BANNER_COVER or (cover >= _BACKGROUND_COVER and len(inside) >= _BACKGROUND_LINES)


def worth_keeping(page: Page) -> list[Box]:
    """Return the boxes of the page's pictures that are neither icons nor the whole page, from top to bottom."""
    width, height = page.size
    least, most = _MIN_SHARE * width * height, _WHOLE_PAGE * width * height
    boxes = [box for box, _ in _on_page(page) if least <= area(box) <= most]
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


def _on_page(page: Page) -> list[tuple[Box, int]]:
    """Return (box, pixels) of every picture on the page, also in groups of objects; touching pictures are merged."""
    page_width, page_height = page.size
    located = []
    for raw, matrices in _objects(page.raw, pdfium_c.FPDFPage_CountObjects, pdfium_c.FPDFPage_GetObject):
        width, height = ctypes.c_uint(), ctypes.c_uint()
        sides = [ctypes.c_float() for _ in range(4)]
        if not pdfium_c.FPDFPageObj_GetBounds(raw, *sides):
            continue
        pdfium_c.FPDFImageObj_GetImagePixelSize(raw, width, height)
        bounds = tuple(side.value for side in sides)
        for matrix in matrices:
            bounds = matrix.on_rect(*bounds)
        left, top, right, bottom = page.displayed(*bounds)
        left, right = (min(max(x, 0.0), page_width) for x in (left, right))
        top, bottom = (min(max(y, 0.0), page_height) for y in (top, bottom))
        located.append(((left, top, right, bottom), width.value * height.value))
    return merged(located)


def _objects(parent: Any, count: Any, get: Any, depth: int = 0) -> Iterator[tuple[Any, list[PdfMatrix]]]:
    """Yield raw picture objects below `parent`, each with the matrices of the groups around it, innermost first."""
    # Drawings may have a million objects, so only the first ones are inspected.
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
    """Return (box, pixels) of the pictures, with touching ones as one picture that has the pixels of all: programs cut
    large pictures into strips. If there are more than 200, all become one."""

    def united(parts: Sequence[tuple[Box, int]]) -> tuple[Box, int]:
        return around(box for box, _ in parts), sum(pixels for _, pixels in parts)

    if len(pictures) > _MAX_PIECES:
        return [united(pictures)]
    result: list[tuple[Box, int]] = []
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

"""Read rules, coloured areas and pictures of a PDF page from PDFium's objects, including those in form objects."""

import ctypes
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pypdfium2.raw as pdfium_c
from pypdfium2 import PdfMatrix

from pipeline.reading.layout.model import Rule
from pipeline.reading.pdf.pdfium import Box, Page
from pipeline.reading.pdf.pictures import Found

_MAX_OBJECTS = 20_000
_MAX_SEGMENTS = 50_000
_MAX_DEPTH = 4
_THIN_PT = 3.0
_LEVEL_PT = 0.7
_MIN_RULE_PT, _MAX_DASH_PT = 4.0, 12.0
_RECTANGLE_SEGMENTS = 6
_ROUNDED_SEGMENTS, _ROUNDED_SIDES, _ROUNDED_CORNERS = 20, 3, 4

Point = tuple[float, float]


class Drawings(NamedTuple):
    """The drawings on a page besides its text, in displayed coordinates; `dashes`: horizontal rules as short as an
    underscore; `images`: boxes of pictures; `pictures`: these and the thin ones, each with the number of its pixels."""

    rules: list[Rule]
    dashes: list[Rule]
    fills: list[Box]
    shapes: list[Box]
    images: list[Box]
    pictures: list[Found]


def read(page: Page) -> Drawings:
    """Return the drawings among the first `_MAX_OBJECTS` objects of the page."""
    reader = _Reader(page)
    for raw, matrix, is_picture in _drawn(page.raw):
        if is_picture:
            reader.add_picture(raw, matrix)
        elif reader.budget > 0:
            reader.add_path(raw, matrix)
    return reader.drawings


def _drawn(parent: Any) -> Iterator[tuple[Any, PdfMatrix | None, bool]]:
    """Yield (raw object, matrix of the forms around it, whether it is a picture) of the page's paths and pictures."""
    remaining = _MAX_OBJECTS
    waiting = [(parent, pdfium_c.FPDFPage_CountObjects, pdfium_c.FPDFPage_GetObject, None, 0)]
    while waiting:
        parent, count, get, matrix, depth = waiting.pop()
        for index in range(min(count(parent), remaining)):
            remaining -= 1
            raw = get(parent, index)
            kind = pdfium_c.FPDFPageObj_GetType(raw)
            if kind in {pdfium_c.FPDF_PAGEOBJ_PATH, pdfium_c.FPDF_PAGEOBJ_IMAGE}:
                yield raw, matrix, kind == pdfium_c.FPDF_PAGEOBJ_IMAGE
            elif kind == pdfium_c.FPDF_PAGEOBJ_FORM and depth < _MAX_DEPTH:
                inner = _matrix(raw)
                combined = inner if matrix is None else inner.multiply(matrix)
                count_in, get_in = pdfium_c.FPDFFormObj_CountObjects, pdfium_c.FPDFFormObj_GetObject
                waiting.append((raw, count_in, get_in, combined, depth + 1))


def _matrix(raw: Any) -> PdfMatrix:
    matrix = pdfium_c.FS_MATRIX()
    pdfium_c.FPDFPageObj_GetMatrix(raw, matrix)
    return PdfMatrix.from_raw(matrix)


def _is_thin(box: Box) -> bool:
    return min(box[2] - box[0], box[3] - box[1]) <= _THIN_PT


class _Reader:
    """Collects drawings; `budget`: how many more segments to read."""

    def __init__(self, page: Page) -> None:
        self.drawings = Drawings([], [], [], [], [], [])
        self.budget = _MAX_SEGMENTS
        self._page = page
        self._sides = [ctypes.c_float() for _ in range(4)]
        self._fill_mode, self._stroke = ctypes.c_int(), ctypes.c_int()

    def _box(self, raw: Any, matrix: PdfMatrix | None) -> Box | None:
        left, bottom, right, top = self._sides
        if not pdfium_c.FPDFPageObj_GetBounds(raw, left, bottom, right, top):
            return None
        bounds = (left.value, bottom.value, right.value, top.value)
        return self._page.displayed(*(bounds if matrix is None else matrix.on_rect(*bounds)))

    def add_picture(self, raw: Any, matrix: PdfMatrix | None) -> None:
        if (box := self._box(raw, matrix)) is None:
            return
        width, height = ctypes.c_uint(), ctypes.c_uint()
        pdfium_c.FPDFImageObj_GetImagePixelSize(raw, width, height)
        self.drawings.pictures.append((box, width.value * height.value))
        if _is_thin(box):
            self._add_thin(box)  # Some programs draw rules as pictures of one dot.
        else:
            self.drawings.images.append(box)

    def add_path(self, raw: Any, matrix: PdfMatrix | None) -> None:
        self.budget -= 1
        if (box := self._box(raw, matrix)) is None:
            return
        pdfium_c.FPDFPath_GetDrawMode(raw, self._fill_mode, self._stroke)
        stroked = bool(self._stroke.value)
        if not stroked and _is_thin(box):
            self._add_thin(box)
            return
        count = pdfium_c.FPDFPath_CountSegments(raw)
        if not stroked and count > _ROUNDED_SEGMENTS and count % 5 and count % 4:
            self.drawings.shapes.append(box)  # an icon, part of a chart, a letter drawn as a path
            return
        if count <= self.budget:
            self._add_outline(box, count, *self._add_segments(raw, matrix, count, stroked=stroked))
        else:
            self._add_segments(raw, matrix, self.budget, stroked=stroked)

    def _add_outline(self, box: Box, count: int, straight: int, slanting: bool) -> None:
        """Add a rectangle with round corners to the fills, other paths with curves or slanting lines to the shapes."""
        curves = (count - straight) // 3 if 2 * straight < count else 0
        if slanting or (curves and straight < _ROUNDED_SIDES):
            self.drawings.shapes.append(box)
        elif curves:
            (self.drawings.fills if curves <= _ROUNDED_CORNERS else self.drawings.shapes).append(box)

    def _add_thin(self, box: Box) -> None:
        left, top, right, bottom = box
        across, along = sorted((right - left, bottom - top))
        if right - left == along:
            middle = (top + bottom) / 2
            rule = Rule(left, middle, right, middle)
            if 2 * across < along <= _MAX_DASH_PT:
                self.drawings.dashes.append(rule)
        else:
            middle = (left + right) / 2
            rule = Rule(middle, top, middle, bottom)
        if along >= _MIN_RULE_PT:
            self.drawings.rules.append(rule)

    def _add_dot(self, raw: Any, line: Box) -> None:
        """Add a stroke that is as wide as it is long to the fills: TeX's square bullets."""
        left, top, right, bottom = line
        length, width = max(right - left, bottom - top), ctypes.c_float()
        if pdfium_c.FPDFPageObj_GetStrokeWidth(raw, width) and 0.5 * length < width.value < 2 * length:
            half = width.value / 2
            across, along = (half, 0.0) if right == left else (0.0, half)
            self.drawings.fills.append((left - across, top - along, right + across, bottom + along))

    def _add_segments(self, raw: Any, matrix: PdfMatrix | None, count: int, *, stroked: bool) -> tuple[int, bool]:
        """Add stroked horizontal and vertical segments as rules, rectangles as fills, thin filled rectangles as rules.

        Return the number of straight segments, and whether any segment slants."""
        slanting = False
        straight = 0
        for points in self._shapes(raw, matrix, count):
            straight += len(points) - 1
            slanting |= any(min(abs(ax - bx), abs(ay - by)) > _LEVEL_PT for (ax, ay), (bx, by) in pairwise(points))
            if stroked:
                for (ax, ay), (bx, by) in pairwise(points):
                    across, along = abs(ax - bx), abs(ay - by)
                    if max(across, along) >= _MIN_RULE_PT and min(across, along) <= _LEVEL_PT:
                        self._add_thin((min(ax, bx), min(ay, by), max(ax, bx), max(ay, by)))
                    elif count == 2 and min(across, along) == 0:
                        line = (min(ax, bx), min(ay, by), max(ax, bx), max(ay, by))
                        self._add_dot(raw, line)
                        self._add_thin(line)
            if not 4 <= len(points) <= _RECTANGLE_SEGMENTS or len({round(x) for x, _ in points}) > 2:
                continue
            xs, ys = [x for x, _ in points], [y for _, y in points]
            box = (min(xs), min(ys), max(xs), max(ys))
            if not _is_thin(box):
                self.drawings.fills.append(box)
            elif not stroked:
                self._add_thin(box)
        return straight, slanting

    def _shapes(self, raw: Any, matrix: PdfMatrix | None, count: int) -> Iterator[list[Point]]:
        """Yield the path's polygons in displayed coordinates, without its curves."""
        own = _matrix(raw)
        whole = own if matrix is None else own.multiply(matrix)
        x, y = ctypes.c_float(), ctypes.c_float()
        points: list[Point] = []
        self.budget -= count
        for index in range(count):
            segment = pdfium_c.FPDFPath_GetPathSegment(raw, index)
            kind = pdfium_c.FPDFPathSegment_GetType(segment)
            pdfium_c.FPDFPathSegment_GetPoint(segment, x, y)
            px, py = whole.on_point(x.value, y.value)
            left, top, _, _ = self._page.displayed(px, py, px, py)
            if kind != pdfium_c.FPDF_SEGMENT_LINETO:
                if len(points) > 1:
                    yield points
                points = []
            points.append((left, top))
            if pdfium_c.FPDFPathSegment_GetClose(segment) and len(points) > 1:
                points.append(points[0])
        if len(points) > 1:
            yield points

"""Use PDFium safely: one lock per process, every object closed, errors as `UnitError`.

PDFium is not thread-safe, not even across documents: threads that use it at the same time crash the process. Every call
holds this module's lock, and no object from a `with` block works after the block.
"""

import ctypes
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c
from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError

MAX_SIDE_PX = 16_000
"""The longest side of a rendered page, slightly below the limits of JPEG, WebP and vision services."""

Box = tuple[float, float, float, float]

_POINTS_PER_INCH = 72
_UNREADABLE = "{} cannot be read; check its permissions."
_ERR_FILE = 2
_ERR_FORMAT = 3
_ERR_PASSWORD = 4
_DRAWN_ANNOTATIONS = frozenset({pdfium_c.FPDF_ANNOT_FREETEXT, pdfium_c.FPDF_ANNOT_STAMP, pdfium_c.FPDF_ANNOT_WIDGET})
_BUTTONS = frozenset({pdfium_c.FPDF_FORMFIELD_CHECKBOX, pdfium_c.FPDF_FORMFIELD_RADIOBUTTON})
_UNSEEN = pdfium_c.FPDF_ANNOT_FLAG_HIDDEN | pdfium_c.FPDF_ANNOT_FLAG_NOVIEW
_COMB = 1 << 24  # a text field's flag: each character in a box of its own
_MAX_VALUE = 2_000  # characters


class _Lock:
    """A re-entrant lock that is free in a forked child, whichever thread held it in the parent."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_LOCK = _Lock()


def quick(function: Any, result: Any) -> Any:
    """Return a form of PDFium's function that takes half the time and returns a plain number, for calls about each
    word.

    It converts no arguments: all must be handles, `ctypes` objects or small integers. It keeps the interpreter's lock,
    which other threads could use only for a microsecond.
    """
    return ctypes.PYFUNCTYPE(result)(ctypes.cast(function, ctypes.c_void_p).value or 0)


text_object_at = quick(pdfium_c.FPDFText_GetTextObject, ctypes.c_void_p)
"""Returns the address of the text object of a text page's character, by index."""
render_mode = quick(pdfium_c.FPDFTextObj_GetTextRenderMode, ctypes.c_int)
"""Returns the paint mode of a text object, as numbered by the PDF standard."""


def bounded_scale(width_pt: float, height_pt: float, dpi: float, max_pixels: int) -> float:
    """Return the pixels per point for a page of this size: `dpi`, or less to keep within `max_pixels` and
    `MAX_SIDE_PX`."""
    scale = dpi / _POINTS_PER_INCH
    longest_px = min(MAX_SIDE_PX, max_pixels)
    across, down = math.ceil(width_pt * scale), math.ceil(height_pt * scale)
    if across * down <= max_pixels and max(across, down) <= longest_px:
        return scale
    # Sides are rounded up to whole pixels. A scale with one extra pixel on each side fits after rounding:
    # (width * scale + 1) * (height * scale + 1) = max_pixels
    area, sides = width_pt * height_pt, width_pt + height_pt
    fits = (math.sqrt(sides**2 + 4 * area * (max_pixels - 1)) - sides) / (2 * area)
    return min(scale, fits, (longest_px - 1) / max(width_pt, height_pt))


class Field(NamedTuple):
    """A form field whose look is not its text: a check box (`[x]` or `[ ]`), or a value with its characters in boxes.
    `box` is in PDFium's coordinates."""

    box: Box
    text: str


class Page:
    """An open page. `raw` is its PDFium handle; use it only while the page is open and the lock is held. `fields` are
    in the order of the file.

    Boxes are (left, top, right, bottom) in points from the top left corner of the displayed page.
    """

    def __init__(self, number: int, raw: Any, fields: Sequence[Field] = ()) -> None:
        self.number = number
        self.fields = fields
        self.raw = raw
        self._rotation = int(raw.get_rotation())
        self._bounds: Box = raw.get_bbox()  # left, bottom, right, top of the displayed area
        width, height = raw.get_size()
        self.size: tuple[float, float] = (float(width), float(height))
        """Width and height in points as displayed, after rotation."""

    @property
    def rotation(self) -> int:
        """The page's clockwise rotation for display, in degrees."""
        return self._rotation

    @property
    def bounds(self) -> Box:
        """The displayed area in PDFium's coordinates: left, bottom, right, top."""
        return self._bounds

    @property
    def corner(self) -> tuple[float, float] | None:
        """The top left corner of the displayed area in PDFium's coordinates; None for a rotated page."""
        return (self._bounds[0], self._bounds[3]) if self._rotation == 0 else None

    @property
    def is_bare(self) -> bool:
        """Whether the page has neither objects nor annotations."""
        return bool(pdfium_c.FPDFPage_CountObjects(self.raw) <= 0 and pdfium_c.FPDFPage_GetAnnotCount(self.raw) <= 0)

    def displayed(self, left: float, bottom: float, right: float, top: float) -> Box:
        """Convert a box from PDFium's coordinates, unrotated and growing upwards, to the displayed page."""
        x0, y0, x1, y1 = self._bounds
        if self._rotation == 0:
            return (left - x0, y1 - top, right - x0, y1 - bottom)
        if self._rotation == 90:
            return (bottom - y0, left - x0, top - y0, right - x0)
        if self._rotation == 180:
            return (x1 - right, bottom - y0, x1 - left, top - y0)
        return (y1 - top, x1 - right, y1 - bottom, x1 - left)

    @contextmanager
    def text_page(self) -> Iterator[Any]:
        """Open the page's text layer and yield its raw handle."""
        text = self.raw.get_textpage()
        try:
            yield text.raw
        finally:
            text.close()

    def render(self, dpi: float, max_pixels: int, box: Box | None = None) -> Image.Image:
        """Return an RGB picture on white of the page or `box`, at `dpi` or less so as not to exceed `max_pixels`."""
        page_width, page_height = self.size
        left, top, right, bottom = box or (0.0, 0.0, page_width, page_height)
        scale = bounded_scale(right - left, bottom - top, dpi, max_pixels)
        cut_off = (left, page_height - bottom, page_width - right, top)
        # Four bytes per pixel render faster than three.
        bitmap = self.raw.render(
            scale=scale, crop=cut_off, rev_byteorder=True, prefer_bgrx=True, limit_image_cache=True
        )
        try:
            return _in_rgb(bitmap)
        finally:
            bitmap.close()

    def sketch(self, dpi: float, max_pixels: int, within_s: float) -> Image.Image:
        """Return an RGB picture of the whole page without its form fields, if PDFium draws it within `within_s`
        seconds.

        Raises `UnitError`, code `slow_drawing`: hundreds of transparent layers can take minutes.
        """
        scale = bounded_scale(*self.size, dpi, max_pixels)
        width, height = (math.ceil(side * scale) for side in self.size)
        ends = time.monotonic() + within_s
        pause = pdfium_c.IFSDK_PAUSE(version=1)
        pause.NeedToPauseNow = type(pause.NeedToPauseNow)(lambda _: time.monotonic() > ends)
        bitmap = pdfium.PdfBitmap.new_native(width, height, pdfium_c.FPDFBitmap_BGRx, rev_byteorder=True)
        flags = pdfium_c.FPDF_ANNOT | pdfium_c.FPDF_REVERSE_BYTE_ORDER | pdfium_c.FPDF_RENDER_LIMITEDIMAGECACHE
        try:
            bitmap.fill_rect((255, 255, 255, 255), 0, 0, width, height)
            drawn = pdfium_c.FPDF_RenderPageBitmap_Start(bitmap, self.raw, 0, 0, width, height, 0, flags, pause)
            pdfium_c.FPDF_RenderPage_Close(self.raw)
            if drawn != pdfium_c.FPDF_RENDER_DONE:
                raise UnitError(f"Page {self.number} takes too long to draw.", code="slow_drawing")
            return _in_rgb(bitmap)
        finally:
            bitmap.close()


def _in_rgb(bitmap: Any) -> Image.Image:
    """Copy the picture out of the bitmap, whose memory is freed with it."""
    picture: Image.Image = bitmap.to_pil()
    return picture.copy() if picture.mode == "RGB" else picture.convert("RGB")


class Document:
    """An open PDF; use `open_document`."""

    def __init__(self, raw: Any, path: Path) -> None:
        self._raw = raw
        self._path = path

    @property
    def pages(self) -> int:
        """The number of pages."""
        with _LOCK:
            return len(self._raw)

    def page_size(self, number: int) -> tuple[float, float]:
        """Return width and height in points of page `number` (from 1), as displayed, without loading the page."""
        with _LOCK, _pdfium_errors(self._path, number):
            width, height = self._raw.get_page_size(number - 1)
            return float(width), float(height)

    def save_decrypted(self, target: Path) -> None:
        """Write a copy that needs no password to `target`. Raises `UnitError` with code `io`."""
        flags = pdfium_c.FPDF_NO_INCREMENTAL | pdfium_c.FPDF_REMOVE_SECURITY
        try:
            with _LOCK:
                self._raw.save(target, flags=flags)
        except (pdfium.PdfiumError, OSError) as error:
            message = f"A copy of {self._path.name} without its password cannot be written; is the disk full?"
            raise UnitError(message, code="io") from error

    @contextmanager
    def page(self, number: int) -> Iterator[Page]:
        """Open page `number` (from 1). Other threads wait for PDFium until the block ends. Raises `UnitError`
        (permanent) with code `no_page` or `corrupt`."""
        with _LOCK, _pdfium_errors(self._path, number):
            if not 1 <= number <= len(self._raw):
                raise UnitError(
                    f"{self._path.name} has no page {number}; it has {len(self._raw)}.",
                    kind=ErrorKind.PERMANENT,
                    code="no_page",
                )
            raw, fields = _with_annotations_drawn(self._raw, number - 1)
            try:
                yield Page(number, raw, fields)
            finally:
                raw.close()


@contextmanager
def open_document(path: Path, password: str | None = None) -> Iterator[Document]:
    """Open the PDF at `path`, whatever its suffix, and close it afterwards.

    Raises `UnitError` (permanent) with code `encrypted` (it needs a password, or another one; files that only restrict
    copying or printing open), `encryption` (one that PDFium cannot undo), `corrupt` (damaged or not a PDF), `no_pages`,
    `missing` or `unreadable`.
    """
    with _LOCK, _pdfium_errors(path):
        if not os.access(path, os.R_OK) and path.exists():
            raise UnitError(_UNREADABLE.format(path.name), kind=ErrorKind.PERMANENT, code="unreadable")
        # A PDF without pages sets no error and keeps that of the last file. This call sets "no file", which a readable
        # file never gets.
        pdfium_c.FPDF_LoadDocument(b"", None)
        raw = pdfium.PdfDocument(path, password)
        with suppress(pdfium.PdfiumError):
            raw.init_forms()  # draws values that the file has without their look
    try:
        yield Document(raw, path)
    finally:
        with _LOCK:
            raw.close()


def _with_annotations_drawn(document: Any, index: int) -> tuple[Any, list[Field]]:
    """Return page `index` (from 0), with its form fields and typed notes made part of it, so that text layer and
    picture show them, and the fields whose look is not their text."""
    page = document[index]
    kinds, fields = set(), []
    for number in range(pdfium_c.FPDFPage_GetAnnotCount(page)):
        if annotation := pdfium_c.FPDFPage_GetAnnot(page, number):
            kind = pdfium_c.FPDFAnnot_GetSubtype(annotation)
            kinds.add(kind)
            if kind == pdfium_c.FPDF_ANNOT_WIDGET and document.formenv and (field := _field(document, annotation)):
                fields.append(field)
            pdfium_c.FPDFPage_CloseAnnot(annotation)
    if not kinds & _DRAWN_ANNOTATIONS:
        return page, fields
    if pdfium_c.FPDFPage_Flatten(page, pdfium_c.FLAT_NORMALDISPLAY) != pdfium_c.FLATTEN_SUCCESS:
        return page, fields
    page.close()  # Only a newly loaded page shows the flattened annotations.
    return document[index], fields


def _field(document: Any, widget: Any) -> Field | None:
    """Return the widget's field if it is shown and its look is not its text."""
    form, box = document.formenv, pdfium_c.FS_RECTF()
    if pdfium_c.FPDFAnnot_GetFlags(widget) & _UNSEEN or not pdfium_c.FPDFAnnot_GetRect(widget, box):
        return None
    kind = pdfium_c.FPDFAnnot_GetFormFieldType(form, widget)
    if kind in _BUTTONS:
        text = "[x]" if pdfium_c.FPDFAnnot_IsChecked(form, widget) else "[ ]"
    elif kind == pdfium_c.FPDF_FORMFIELD_TEXTFIELD and pdfium_c.FPDFAnnot_GetFormFieldFlags(form, widget) & _COMB:
        value = (pdfium_c.FPDF_WCHAR * _MAX_VALUE)()
        size = pdfium_c.FPDFAnnot_GetFormFieldValue(form, widget, value, ctypes.sizeof(value))
        text = " ".join(bytes(value)[: max(0, size - 2)].decode("utf-16-le", "replace").split())
    else:
        return None
    return Field((box.left, box.bottom, box.right, box.top), text) if text else None


@contextmanager
def _pdfium_errors(path: Path, number: int | None = None) -> Iterator[None]:
    """Turn PDFium's errors into `UnitError`s with messages for people."""
    try:
        yield
    except pdfium.PdfiumError as error:
        facts = {
            _ERR_FORMAT: ("corrupt", f"{path.name} is damaged or not a PDF; export or download it again."),
            _ERR_PASSWORD: ("encrypted", f"{path.name} needs a password; save a copy without one and use that."),
        }
        code, message = facts.get(error.err_code, ("corrupt", f"{path.name} cannot be opened as a PDF: {error}"))
        if error.err_code == _ERR_FILE:
            code, message = _without_pages(path)
        if number is not None:
            code, message = "corrupt", f"Page {number} of {path.name} is damaged: {error}"
        raise UnitError(message, kind=ErrorKind.PERMANENT, code=code) from error
    except FileNotFoundError as error:
        raise UnitError(f"{path} does not exist.", kind=ErrorKind.PERMANENT, code="missing") from error


def _without_pages(path: Path) -> tuple[str, str]:
    """Return (code, message) for a file in which PDFium finds no pages."""
    import pikepdf  # noqa: PLC0415  (takes 6 MB)

    try:
        with pikepdf.open(path) as pdf:
            if not len(pdf.pages):
                return "no_pages", f"{path.name} has no pages."
    except pikepdf.PasswordError:
        # PDFium needs no password, but cannot decrypt the pages: Acrobat lengthens a short key in a way of its own.
        message = f"{path.name} is encrypted in a way that Penstock cannot undo; save a copy without encryption."
        return "encryption", message
    except (pikepdf.PikepdfError, OSError, RuntimeError):
        pass
    return "corrupt", f"The list of pages of {path.name} is damaged; export it again."

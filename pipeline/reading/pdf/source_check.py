"""Check, in a child process, whether source files can be converted: PDFium and Pillow read them.

Damage, passwords, and pages or pictures too large for this machine's memory are refused here, before anything is
stored.
"""

from pathlib import Path

from pipeline.engine.errors import UnitError, UserError
from pipeline.reading.files.source import Limits, SourceInfo, check_file, check_page_count, unreadable, unsupported
from pipeline.reading.ocr import images
from pipeline.reading.pdf import pdfium
from pipeline.reading.sandbox.limits import Progress

_MAX_CHECKED_PIXELS = 1_000_000_000  # of all frames of a TIFF together; later frames are checked by their headers
_LOCKED = "{} needs a password: give it as `password`, or save a copy without one."


def inspect(path: Path, limits: Limits, progress: Progress = lambda _: None) -> SourceInfo:
    """Check that `path` can be converted; return its type, pages and size. Runs in this process, where libraries may
    hang, crash or exhaust memory; `inspection.inspect` runs it in a child.

    Calls `progress` after each frame of a picture; its share is always 0, since the number of frames is unknown. Raises
    `UserError` with code `missing`, `directory`, `unreadable`, `empty`, `too_large`, `unsupported`, `corrupt`,
    `encrypted`, `encryption`, `no_pages`, `too_many_pages`, `page_size` or `too_many_pixels`.
    """
    detected = check_file(path, limits)
    if detected is None:
        raise unsupported(path.name)
    try:
        pages = _check_pdf(path, limits) if detected == "pdf" else _check_picture(path, limits, progress)
        return SourceInfo(detected, pages, path.stat().st_size)
    except UnitError as error:
        message = str(error) if error.code != "encrypted" else _LOCKED.format(path.name)
        raise UserError(message, code=error.code) from error
    except OSError as error:
        raise unreadable(path) from error


def _check_pdf(path: Path, limits: Limits) -> int:
    with pdfium.open_document(path) as document:
        pages = document.pages
        check_page_count(path.name, pages, limits)
        damaged: UnitError | None = None
        sound = 0
        for number in range(1, pages + 1):
            try:
                width, height = document.page_size(number)
            except UnitError as error:
                damaged = damaged or error  # only this page fails
                continue
            sound += 1
            # Written so that NaN is refused too.
            if not (0 < width <= limits.max_page_points and 0 < height <= limits.max_page_points):
                raise UserError(
                    f"Page {number} of {path.name} measures {width:g} × {height:g} points; "
                    f"more than 0 and at most {limits.max_page_points:g} are accepted.",
                    code="page_size",
                )
        if damaged and not sound:
            raise damaged
    return pages


def _check_picture(path: Path, limits: Limits, progress: Progress) -> int:
    pages = checked_pixels = 0
    with images.open_picture(path) as image:
        while images.seek_frame(image, pages + 1, path):
            pages += 1
            check_page_count(path.name, pages, limits)
            checked_pixels += image.width * image.height
            if checked_pixels <= _MAX_CHECKED_PIXELS:
                image.load()
            progress(0.0)
    return pages

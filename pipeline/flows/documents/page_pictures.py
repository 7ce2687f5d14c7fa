"""Pictures of pages to show: rendered on request, and cached up to `documents.page_pictures_mb`."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal, cast

from pipeline.engine.errors import UserError
from pipeline.flows.documents import files, queries
from pipeline.reading.files.filetype import PageType
from pipeline.reading.pdf import inspection
from pipeline.settings import Settings
from pipeline.storage.context import Context

MIN_DPI, MAX_DPI = 36, 200
MIN_WIDTH, MAX_WIDTH = 40, 2000
Encoding = Literal["png", "webp"]
_USE_PRECISION_S = 3600
"""How exactly a file's time of modification records the last use of a picture."""
_FRACTION = 20
"""Check the size of the folder after 1/`_FRACTION` of the allowed size was written."""


@dataclass(frozen=True)
class Rendering:
    """The form of a picture: `width` pixels wide, or at `dpi` if `width` is 0."""

    dpi: float = 100
    width: int = 0
    encoding: Encoding = "png"

    @property
    def bounded(self) -> "Rendering":
        """Return the rendering within the limits of resolution and width."""
        # min and max turn NaN into a number, which round needs.
        dpi = round(min(MAX_DPI, max(MIN_DPI, self.dpi)))
        return Rendering(dpi, min(MAX_WIDTH, max(MIN_WIDTH, self.width)) if self.width else 0, self.encoding)


@dataclass(frozen=True)
class Picture:
    """A picture's name, which contains the page of the file and the rendering, and its content if it is cached."""

    name: str
    content: bytes | None


def find(context: Context, document_id: str, number: int, rendering: Rendering) -> Picture:
    """Return the picture of a page: its name, and its content only if it is cached; renders nothing.

    `number`: the page's position in the result, from 1. Raises `UserError` without the page.
    """
    path = _path(context.settings, document_id, queries.page_source(context, document_id, number), rendering)
    return Picture(path.name, _cached(path))


def picture(
    context: Context,
    document_id: str,
    number: int,
    rendering: Rendering = Rendering(),
    wanted: Callable[[], bool] = lambda: True,
) -> bytes:
    """Return a picture of a page in the encoding of `rendering`, from the cache if possible. `number`: the page's
    position in the result, from 1.

    Otherwise a child process of low priority renders it, with at most the settings' `max_pixels`, and it is cached.
    Calls `wanted` twice a second while rendering. Raises `Unwanted` if that returns False, `UserError` without the
    page or the stored file, or if it cannot be rendered.
    """
    settings, rendering = context.settings, rendering.bounded
    page = queries.page_source(context, document_id, number)
    target = _path(settings, document_id, page, rendering)
    if (cached := _cached(target)) is not None:
        return cached
    document = queries.document(context, document_id)
    if document.holds_text:
        message = f"{document.filename} holds text, so its pages have no pictures: read their text"
        raise UserError(message, code="no_picture")
    source = files.source_path(settings, document_id, document.type)
    if not source.exists():
        raise UserError(f"the file of document {document_id} is not stored any more", code="no_picture")
    kind, limit = cast("PageType", document.type), settings.documents.max_pixels
    inspection.render(
        source, document.filename, kind, page, target, rendering.dpi, limit, wanted, width=rendering.width, gentle=True
    )
    content = _cached(target)
    if content is None:
        raise UserError(f"page {number} of document {document_id} cannot be shown now", code="no_picture")
    room.note(settings, len(content))
    return content


def shape(context: Context, document_id: str, page_source: int) -> tuple[int, int] | None:
    """Return the width and height of a cached WebP of this page of the file, else of another page; None without one.

    In pixels. Interfaces reserve this space for a picture that is not rendered yet.
    """
    folder = files.views_folder(context.settings, document_id)
    prefix = f"page-{page_source:05d}-"
    with suppress(OSError), os.scandir(folder) as entries:
        names = sorted((entry.name for entry in entries if entry.name.endswith(".webp")), key=lambda name: name[:11])
        for name in [*(name for name in names if name.startswith(prefix)), *names][:3]:
            with (folder / name).open("rb") as file:
                head = file.read(30)
            # The head of a lossy WebP: RIFF, a size, WEBP, VP8, a frame's start code, its sides in 14 bits each.
            if head[8:16] == b"WEBPVP8 " and head[23:26] == b"\x9d\x01\x2a":
                width, height = (int.from_bytes(head[at : at + 2], "little") & 0x3FFF for at in (26, 28))
                return width, height
    return None


def _path(settings: Settings, document_id: str, page_source: int, rendering: Rendering) -> Path:
    rendering = rendering.bounded
    size = f"w{rendering.width}" if rendering.width else f"{rendering.dpi}"
    return files.views_folder(settings, document_id) / f"page-{page_source:05d}-{size}.{rendering.encoding}"


def _cached(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > _USE_PRECISION_S:
                os.utime(file.fileno())
            return file.read()
    except FileNotFoundError:
        return None


class _Room:
    """Keeps the folder of pictures within the settings' size. Other processes may write to the folder as well."""

    def __init__(self) -> None:
        self._lock, self._checking = Lock(), Lock()
        self._written: int | None = None
        """Bytes since the last check; None before the first one."""

    def note(self, settings: Settings, written: int) -> None:
        """Count written bytes. At the first call, and whenever a twentieth of the allowed size was written, remove the
        least recently used pictures if the folder exceeds that size."""
        most = settings.documents.page_pictures_mb * 1_000_000
        with self._lock:
            is_time = self._written is None or self._written + written > most // _FRACTION
            self._written = 0 if is_time else (self._written or 0) + written
        if is_time and self._checking.acquire(blocking=False):
            try:
                make_room(settings.view_dir, most)
            finally:
                self._checking.release()


def make_room(folder: Path, most: int) -> None:
    """If the folder exceeds `most` bytes, remove the least recently used pictures until it has 90 % of that.

    In any case, remove documents' folders that have been empty for an hour.
    """
    by_use: list[tuple[float, int, Path]] = []
    for document in folder.iterdir() if folder.is_dir() else ():
        pictures = list(document.iterdir()) if document.is_dir() else []
        for path in pictures:
            with suppress(FileNotFoundError):
                status = path.stat()
                by_use.append((status.st_mtime, status.st_size, path))
        if not pictures:
            with suppress(OSError):
                # Another process may be about to write a picture into a new folder.
                if time.time() - document.stat().st_mtime > _USE_PRECISION_S:
                    document.rmdir()
    total = sum(size for _, size, _ in by_use)
    if total <= most:
        return
    for _, size, path in sorted(by_use):
        if total <= most - most // _FRACTION * 2:
            break
        path.unlink(missing_ok=True)
        total -= size


room = _Room()

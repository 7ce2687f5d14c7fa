"""Pictures of pages for people to look at: made when somebody asks, and kept as long as there is room for them."""

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
from pipeline.reading.files.filetype import FileType
from pipeline.reading.pdf import inspection
from pipeline.settings import Settings
from pipeline.storage.context import Context

MIN_DPI, MAX_DPI = 36, 200
MIN_WIDTH, MAX_WIDTH = 40, 2000
Encoding = Literal["png", "webp"]
_USED_S = 3600
"""How exactly it is known when a picture was looked at last."""
_SHARE = 20
"""A look at all that is kept is due after this part of what may be kept was written."""


@dataclass(frozen=True)
class Look:
    """How a picture is to look: `width` pixels wide, or at `dpi` if that is 0."""

    dpi: float = 100
    width: int = 0
    encoding: Encoding = "png"

    @property
    def bounded(self) -> "Look":
        """The same within what is possible."""
        # In this order: there is no rounding what is not a number.
        dpi = round(min(MAX_DPI, max(MIN_DPI, self.dpi)))
        return Look(dpi, min(MAX_WIDTH, max(MIN_WIDTH, self.width)) if self.width else 0, self.encoding)


@dataclass(frozen=True)
class Picture:
    """A picture's name, which says of which page of the file it is and how it looks; its content if it is kept."""

    name: str
    content: bytes | None


def find(context: Context, document_id: str, number: int, look: Look) -> Picture:
    """The picture of a page, if it was made before. Raises `UserError`: there is no such page."""
    path = _place(context.settings, document_id, queries.page_source(context, document_id, number), look)
    return Picture(path.name, _kept(path))


def picture(
    context: Context, document_id: str, number: int, look: Look = Look(), wanted: Callable[[], bool] = lambda: True
) -> bytes:
    """A page as it is in the file, with the settings' `max_pixels` at most.

    Rendered in a child process of low priority. Raises `UserError`: there is no such page, or it cannot be rendered.
    """
    settings, look = context.settings, look.bounded
    page = queries.page_source(context, document_id, number)
    target = _place(settings, document_id, page, look)
    if (kept := _kept(target)) is not None:
        return kept
    document = queries.document(context, document_id)
    source = files.source_path(settings, document_id, document.type)
    if not source.exists():
        raise UserError(f"the file of document {document_id} is not stored any more", code="no_picture")
    kind, limit = cast("FileType", document.type), settings.documents.max_pixels
    inspection.render(
        source, document.filename, kind, page, target, look.dpi, limit, wanted, width=look.width, gentle=True
    )
    made = _kept(target)
    if made is None:
        raise UserError(f"page {number} of document {document_id} cannot be shown now", code="no_picture")
    _room.note(settings, len(made))
    return made


def shape(context: Context, document_id: str, page_source: int) -> tuple[int, int] | None:
    """Width and height that a picture of this page of the file had, or else one of another page; None if none is kept.

    For whoever leaves room for a picture before it is there.
    """
    folder = files.views_folder(context.settings, document_id)
    mine = f"page-{page_source:05d}-"
    with suppress(OSError), os.scandir(folder) as entries:
        names = sorted((entry.name for entry in entries if entry.name.endswith(".webp")), key=lambda name: name[:11])
        for name in [*(one for one in names if one.startswith(mine)), *names][:3]:
            with (folder / name).open("rb") as file:
                head = file.read(30)
            # RIFF, a size, WEBP, a lossy picture, a frame's start code, its sides in 14 bits each.
            if head[8:16] == b"WEBPVP8 " and head[23:26] == b"\x9d\x01\x2a":
                width, height = (int.from_bytes(head[at : at + 2], "little") & 0x3FFF for at in (26, 28))
                return width, height
    return None


def _place(settings: Settings, document_id: str, page_source: int, look: Look) -> Path:
    look = look.bounded
    size = f"w{look.width}" if look.width else f"{look.dpi}"
    return files.views_folder(settings, document_id) / f"page-{page_source:05d}-{size}.{look.encoding}"


def _kept(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > _USED_S:
                os.utime(file.fileno())
            return file.read()
    except FileNotFoundError:
        return None


class _Room:
    """Keeps the folder of pictures within what the settings allow. Other processes may write there as well."""

    def __init__(self) -> None:
        self._lock, self._looking = Lock(), Lock()
        self._written: int | None = None
        """Bytes since the last look at all; None before the first one."""

    def note(self, settings: Settings, written: int) -> None:
        """So much was written: look at all that is kept, if it is time to."""
        most = settings.documents.page_pictures_mb * 1_000_000
        with self._lock:
            is_time = self._written is None or self._written + written > most // _SHARE
            self._written = 0 if is_time else (self._written or 0) + written
        if is_time and self._looking.acquire(blocking=False):
            try:
                make_room(settings.view_dir, most)
            finally:
                self._looking.release()


def make_room(folder: Path, most: int) -> None:
    """Remove the pictures that were not looked at for longest, until there is room for some more."""
    found: list[tuple[float, int, Path]] = []
    for document in folder.iterdir() if folder.is_dir() else ():
        pictures = list(document.iterdir()) if document.is_dir() else []
        for path in pictures:
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        if not pictures:
            with suppress(OSError):
                # Not one that was made just now for a picture.
                if time.time() - document.stat().st_mtime > _USED_S:
                    document.rmdir()
    left = sum(size for _, size, _ in found)
    if left <= most:
        return
    for _, size, path in sorted(found):
        if left <= most - most // _SHARE * 2:
            break
        path.unlink(missing_ok=True)
        left -= size


_room = _Room()

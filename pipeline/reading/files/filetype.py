"""Detect file types by the first bytes, since suffixes lie. Imports no library: vision providers need none for PDF."""

import re
from pathlib import Path
from typing import Literal

from pipeline.reading.files.user_file import open_file

FileType = Literal["pdf", "png", "jpeg", "webp", "tiff"]

MIME_TYPES: dict[str, str] = {"pdf": "application/pdf"} | {
    name: f"image/{name}" for name in ("png", "jpeg", "webp", "tiff")
}

HEAD_BYTES = 1024
"""The bytes that `detect` reads. PDF readers accept this much junk before `%PDF-`."""

_PDF_OBJECT = re.compile(rb"\s*[0-9]+ [0-9]+ obj\b")
_TIFF_MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def detect(head: bytes) -> FileType | None:
    """Return the type of a file that starts with `head` (its first `HEAD_BYTES` bytes); None if it is not supported."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    if head.startswith(_TIFF_MAGICS):
        return "tiff"
    # A PDF without its header cannot be opened, but the attempt says why.
    return "pdf" if b"%PDF-" in head[:HEAD_BYTES] or _PDF_OBJECT.match(head) else None


def detect_file(path: Path) -> FileType | None:
    """Return the type of the file at `path`. Raises `OSError` if it cannot be read."""
    with open_file(path) as file:
        return detect(file.read(HEAD_BYTES))


def is_temporary(path: Path) -> bool:
    """Whether the file's name begins with `.`, `~` or `#`: it is hidden or still being written."""
    return path.name.startswith((".", "~", "#"))

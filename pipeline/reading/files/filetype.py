"""Detect file types by the first bytes, since suffixes lie. Imports no library: vision providers need none for PDF."""

import re
from pathlib import Path
from typing import Literal

from pipeline.reading.files.user_file import open_file

FileType = Literal["pdf", "png", "jpeg", "webp", "tiff", "heic", "gif", "bmp"]

MIME_TYPES: dict[str, str] = {"pdf": "application/pdf"} | {
    name: f"image/{name}" for name in ("png", "jpeg", "webp", "tiff", "heic", "gif", "bmp")
}

HEAD_BYTES = 1024
"""The bytes that `detect` reads. PDF readers accept this much junk before `%PDF-`."""

_PDF_OBJECT = re.compile(rb"\s*[0-9]+ [0-9]+ obj\b")
_MAGICS: dict[bytes, FileType] = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "jpeg",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
}
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"})
_BMP_HEADERS = frozenset({12, 16, 40, 52, 56, 64, 108, 124})
"""The sizes of a BMP's second header. Text may begin with the two letters of its magic number."""


def detect(head: bytes) -> FileType | None:
    """Return the type of a file that starts with `head` (its first `HEAD_BYTES` bytes); None if it is not supported."""
    for magic, kind in _MAGICS.items():
        if head.startswith(magic):
            return kind
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    if head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return "bmp"
    # AVIF shares the brand `mif1`, and lists its own among the compatible ones.
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS and b"avif" not in head[: int.from_bytes(head[:4], "big")]:
        return "heic"
    # A PDF without its header cannot be opened, but the attempt says why.
    return "pdf" if b"%PDF-" in head[:HEAD_BYTES] or _PDF_OBJECT.match(head) else None


def detect_file(path: Path) -> FileType | None:
    """Return the type of the file at `path`. Raises `OSError` if it cannot be read."""
    with open_file(path) as file:
        return detect(file.read(HEAD_BYTES))


def is_temporary(path: Path) -> bool:
    """Whether the file's name begins with `.`, `~` or `#`: it is hidden or still being written."""
    return path.name.startswith((".", "~", "#"))

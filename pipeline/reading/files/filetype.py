"""Detect file types by the first bytes, since suffixes lie. Imports no library: vision providers need none for PDF."""

import re
from pathlib import Path, PurePath
from typing import Literal, get_args

from pipeline.reading.files.user_file import open_file

PageType = Literal["pdf", "png", "jpeg", "webp", "tiff", "heic", "gif", "bmp"]
"""Types whose pages can be seen: PDF and pictures."""
TextType = Literal[
    "docx", "pptx", "xlsx", "xls", "odt", "odp", "ods", "html", "epub", "rss", "csv", "ipynb", "eml", "md", "txt"
]
"""Types that hold their text, which is read without looking at pages."""
FileType = PageType | TextType

_OFFICE = "application/vnd.openxmlformats-officedocument"
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument"
MIME_TYPES: dict[str, str] = {
    "pdf": "application/pdf",
    **{name: f"image/{name}" for name in ("png", "jpeg", "webp", "tiff", "heic", "gif", "bmp")},
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "pptx": f"{_OFFICE}.presentationml.presentation",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "xls": "application/vnd.ms-excel",
    "odt": f"{_OPEN_DOCUMENT}.text",
    "odp": f"{_OPEN_DOCUMENT}.presentation",
    "ods": f"{_OPEN_DOCUMENT}.spreadsheet",
    "html": "text/html",
    "epub": "application/epub+zip",
    "rss": "text/xml",
    "csv": "text/csv",
    "ipynb": "application/json",
    "eml": "message/rfc822",
    "md": "text/markdown",
    "txt": "text/plain",
}
TEXT_TYPES: frozenset[str] = frozenset(get_args(TextType))

HEAD_BYTES = 4096
"""The bytes that decide about a file's type, except for packed files."""
_PDF_JUNK_BYTES = 1024
"""PDF readers accept this much junk before `%PDF-`."""

ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
HTML = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?><!--.*?-->\s*)*+<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)
FEED = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<[!?][^>]*>\s*)*<(?:\w+:)?(?:rss|feed|rdf)\b", re.IGNORECASE)
MAIL = re.compile(rb"(?:Return-Path|Received|Delivered-To|Message-ID|MIME-Version):[ \t]", re.IGNORECASE)
PLAIN_SUFFIXES = frozenset({".md", ".markdown", ".txt", ".csv"})
"""The suffixes of documents that are plain text: without one of them, plain text is not accepted as a document."""
_TEXT_SUFFIXES = PLAIN_SUFFIXES | {".html", ".htm", ".xhtml", ".eml", ".ipynb"}

_PDF_OBJECT = re.compile(rb"\s*[0-9]+ [0-9]+ obj\b")
_MAGICS: dict[bytes, PageType] = {
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


def detect(head: bytes) -> PageType | None:
    """Return the type of a PDF or picture that starts with `head` (its first `HEAD_BYTES` bytes); None for others."""
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
    if head.startswith(ZIP_MAGICS):  # an uncompressed PDF may be the first file inside
        return None
    # A PDF without its header cannot be opened, but the attempt says why.
    return "pdf" if b"%PDF-" in head[:_PDF_JUNK_BYTES] or _PDF_OBJECT.match(head) else None


def is_pdf(head: bytes, filename: str) -> bool:
    """Whether a file of type `pdf` is one: it begins with `%PDF-`, which text may mention too, or has bytes that text
    lacks."""
    return head.lstrip().startswith(b"%PDF-") or filename.lower().endswith(".pdf") or b"\0" in head


def detect_file(path: Path) -> PageType | None:
    """Return the type of the file at `path` if it is a PDF or picture. Raises `OSError` if it cannot be read."""
    return detect(read_head(path))


def read_head(path: Path) -> bytes:
    """Return the first `HEAD_BYTES` of the file at `path`. Raises `OSError`."""
    with open_file(path) as file:
        return file.read(HEAD_BYTES)


def may_hold_text(head: bytes, filename: str) -> bool:
    """Whether a file called `filename` that starts with `head` may be of a `TextType`; reading it decides."""
    start = head.removeprefix(b"\xef\xbb\xbf")
    return (
        head.startswith((*ZIP_MAGICS, OLE_MAGIC))
        or PurePath(filename).suffix.lower() in _TEXT_SUFFIXES
        or bool(HTML.match(start) or FEED.match(start) or MAIL.match(start))
    )


def is_temporary(path: Path) -> bool:
    """Whether the file's name begins with `.`, `~` or `#`: it is hidden or still being written."""
    return path.name.startswith((".", "~", "#"))

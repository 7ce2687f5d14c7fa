"""Detect a file's kind by its content; suffixes only decide between kinds of text."""

import json
import lzma
import mmap
import re
import zipfile
import zlib
from collections.abc import Collection
from contextlib import closing
from enum import StrEnum
from pathlib import Path, PurePath
from typing import cast

from pipeline.engine.errors import UnitError
from pipeline.reading.files import filetype
from pipeline.reading.files.filetype import HEAD_BYTES, OLE_MAGIC, ZIP_MAGICS, TextType
from pipeline.reading.files.user_file import passes
from pipeline.reading.sandbox.limits import Limits, refused

ARCHIVE = "archive"
"""The code of the error for an archive of files."""
UNREADABLE = (
    zipfile.BadZipFile,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    OSError,
    zlib.error,
    lzma.LZMAError,
)
"""Errors of reading a damaged archive."""
_ZIPPED = {"word/": "docx", "ppt/": "pptx", "xl/": "xlsx"}
_OPEN_DOCUMENT = b"application/vnd.oasis.opendocument."
_MAIL_HEADER = re.compile(rb"[A-Za-z][A-Za-z0-9-]*:")
_PLAIN_SUFFIXES = frozenset(
    {
        ".json",
        ".ipynb",
        ".jsonl",
        ".ndjson",
        ".xml",
        ".yaml",
        ".yml",
        ".toml",
        ".ini",
        ".cfg",
        ".conf",
        ".env",
        ".log",
        ".sql",
        ".py",
        ".pyi",
        ".js",
        ".mjs",
        ".ts",
        ".tsx",
        ".jsx",
        ".java",
        ".kt",
        ".c",
        ".h",
        ".cc",
        ".cpp",
        ".hpp",
        ".cs",
        ".go",
        ".rs",
        ".rb",
        ".php",
        ".pl",
        ".sh",
        ".bash",
        ".zsh",
        ".ps1",
        ".bat",
        ".lua",
        ".r",
        ".swift",
        ".scala",
        ".css",
        ".scss",
        ".diff",
        ".patch",
        ".tex",
        ".srt",
        ".vtt",
        ".properties",
        ".gradle",
        ".cmake",
        ".dockerfile",
        ".proto",
        ".graphql",
        ".vue",
        ".tsv",
    }
)


class Kind(StrEnum):
    """Kinds of files, each with its way of reading."""

    PDF = "pdf"
    PICTURE = "picture"
    DOCX = "docx"
    PPTX = "pptx"
    XLSX = "xlsx"
    XLS = "xls"
    ODT = "odt"
    ODP = "odp"
    ODS = "ods"
    EPUB = "epub"
    HTML = "html"
    FEED = "feed"
    CSV = "csv"
    NOTEBOOK = "notebook"
    MAIL = "mail"
    MARKDOWN = "markdown"
    PLAIN = "plain"


MARKUP = frozenset({Kind.HTML, Kind.FEED, Kind.NOTEBOOK})
"""Kinds whose reading takes memory of many times their size."""

PAGED = frozenset({Kind.PPTX, Kind.ODP, Kind.XLSX, Kind.XLS, Kind.ODS, Kind.EPUB})
"""Kinds with slides, sheets or chapters, which count as pages."""

DECODED = frozenset({Kind.MARKDOWN, Kind.PLAIN})
"""Kinds that are only decoded."""

_OPEN_DOCUMENT_KINDS = {b"text": Kind.ODT, b"presentation": Kind.ODP, b"spreadsheet": Kind.ODS}
_TYPES: dict[Kind, TextType] = {Kind.FEED: "rss", Kind.NOTEBOOK: "ipynb", Kind.MAIL: "eml"}


def text_type(kind: Kind, filename: str) -> TextType | None:
    """Return the type of a document of this kind, called `filename`; None for PDFs, pictures, and plain text whose
    suffix is not one of documents, since unknown bytes pass for Markdown."""
    suffix = PurePath(filename).suffix.lower()
    if kind in DECODED or kind == Kind.CSV:
        if suffix not in filetype.PLAIN_SUFFIXES:
            return None
        return "csv" if kind == Kind.CSV else "txt" if suffix == ".txt" else "md"
    return _TYPES.get(kind) or cast("TextType | None", kind.value if kind.value in filetype.TEXT_TYPES else None)


def kind_of(path: Path, filename: str, limits: Limits) -> Kind:
    """Return the kind of the file at `path`, called `filename`. Refuses archives and Office files that need a password
    or would unpack to too much, before anything unpacks them.

    Raises `UnitError` (permanent): `unsupported`, `encrypted`, `corrupt` or `too_large`; and `OSError`.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if kind := kind_by_head(head, filename):
        return Kind.NOTEBOOK if kind == Kind.PLAIN and filename.endswith(".ipynb") and _is_notebook(path) else kind
    return _ole_kind(path, filename) if head.startswith(OLE_MAGIC) else _packed_kind(path, filename, limits)


def kind_by_head(head: bytes, filename: str) -> Kind | None:
    """Return the kind of a file that starts with `head` (its first `HEAD_BYTES`); None for archives and Office files,
    which only `kind_of` tells apart."""
    if head.startswith((*ZIP_MAGICS, OLE_MAGIC)):
        return None
    detected = filetype.detect(head)
    if detected and (detected != "pdf" or filetype.is_pdf(head, filename)):
        return Kind.PDF if detected == "pdf" else Kind.PICTURE
    return _text_kind(head, PurePath(filename).suffix.lower())


def _text_kind(head: bytes, suffix: str) -> Kind:
    start = head.removeprefix(b"\xef\xbb\xbf")
    if suffix in {".html", ".htm", ".xhtml"} or filetype.HTML.match(start):
        return Kind.HTML
    if filetype.FEED.match(start):
        return Kind.FEED
    if suffix == ".csv":
        return Kind.CSV
    if filetype.MAIL.match(start) or (suffix == ".eml" and _MAIL_HEADER.match(start)):
        return Kind.MAIL
    plain = suffix in _PLAIN_SUFFIXES or start.lstrip().startswith((b"<?xml", b"#!", b'{"', b"[{"))
    return Kind.PLAIN if plain else Kind.MARKDOWN


def _is_notebook(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            content = json.load(file) if path.stat().st_size <= 20_000_000 else None
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and isinstance(content.get("cells"), list)


def _packed_kind(path: Path, filename: str, limits: Limits) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            check_packed(entries, filename, limits)
            names = {entry.filename for entry in entries}
            if not is_document(names):
                raise refused(f"{filename} is an archive; unpack it and add the files in it.", ARCHIVE)
            if any(entry.flag_bits & 1 for entry in entries):
                raise refused(f"{filename} needs a password; save a copy without one and add that.", "encrypted")
            if "mimetype" in names:
                with archive.open("mimetype") as file:
                    declared = file.read(100).strip()
                if declared == b"application/epub+zip":
                    return Kind.EPUB
                if declared.startswith(_OPEN_DOCUMENT):
                    return _open_document_kind(archive, declared.removeprefix(_OPEN_DOCUMENT), filename)
    except UNREADABLE as error:
        raise damaged(filename, error) from error
    for folder, kind in _ZIPPED.items():
        if "[Content_Types].xml" in names and any(name.startswith(folder) for name in names):
            return Kind(kind)
    if "META-INF/container.xml" in names:
        return Kind.EPUB
    raise refused(f"{filename} is an archive; unpack it and add the files in it.", ARCHIVE)


def damaged(filename: str, error: Exception) -> UnitError:
    """Return, without raising it, the error of an archive that cannot be read: transient if its disk may be at
    fault."""
    if passes(error):
        return UnitError(f"{filename} cannot be read at the moment: {error}", code="io_error")
    return refused(f"{filename} is damaged or cut off; export or download it again.", "corrupt")


def _open_document_kind(archive: zipfile.ZipFile, declared: bytes, filename: str) -> Kind:
    kind = _OPEN_DOCUMENT_KINDS.get(declared.removesuffix(b"-template"))
    if kind is None:
        raise refused(f"{filename} is an OpenDocument file without text; export it as PDF.", "unsupported")
    if "META-INF/manifest.xml" in archive.namelist() and b":encryption-data" in archive.read("META-INF/manifest.xml"):
        raise refused(f"{filename} needs a password; save a copy without one and add that.", "encrypted")
    return kind


def is_document(names: Collection[str]) -> bool:
    """Whether a ZIP file with these entries is an Office file or a book rather than an archive of files."""
    return not {"[Content_Types].xml", "mimetype", "META-INF/container.xml"}.isdisjoint(names)


def check_packed(entries: list[zipfile.ZipInfo], filename: str, limits: Limits) -> None:
    """Raise `UnitError` for archives with too many files, or that unpack to too much. False sizes do not help:
    unpacking stops at the declared size."""
    if len(entries) > limits.max_entries:
        message = f"{filename} holds {len(entries):,} files, more than the {limits.max_entries:,} that are accepted."
        raise refused(message, "too_large")
    unpacked = sum(entry.file_size for entry in entries)
    packed = max(1, sum(entry.compress_size for entry in entries))
    if unpacked > limits.max_unpacked_bytes or (unpacked > 10_000_000 and unpacked / packed > limits.max_ratio):
        raise refused(f"{filename} unpacks to {unpacked / 1e6:,.0f} MB, more than is accepted; split it.", "too_large")


def _ole_kind(path: Path, filename: str) -> Kind:
    """Return XLS for an old Excel file, whose streams have names in UTF-16. Raises `UnitError` for other old Office
    files and those with a password."""
    with path.open("rb") as file, closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as data:
        if data.find("EncryptedPackage".encode("utf-16-le")) >= 0:
            raise refused(f"{filename} needs a password; save a copy without one and add that.", "encrypted")
        if data.find("Workbook".encode("utf-16-le")) >= 0 or data.find(b"B\0o\0o\0k\0\0\0") >= 0:
            return Kind.XLS
    raise refused(f"{filename} is an old Office file; save it as docx, xlsx or pptx.", "unsupported")

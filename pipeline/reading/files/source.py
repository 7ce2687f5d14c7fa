"""Source files: their types, sizes and names, and ranges of their pages."""

import re
import stat
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.engine.errors import UserError
from pipeline.reading.files.filetype import FileType, PageType, detect, is_pdf, may_hold_text, read_head

MAX_NAME_BYTES = 200
"""The longest name that `safe_filename` returns, in UTF-8. File systems allow 255; callers append numbers."""

ACCEPTED = (
    "PDF, PNG, JPEG, WebP, TIFF, HEIC, GIF and BMP files, and Office, OpenDocument, EPUB, HTML, e-mail and text files"
)
_MAX_SUFFIX_BYTES = 20
_RANGE = re.compile(r"(?:(?P<only>[0-9]{1,9})|(?P<first>[0-9]{1,9})?\s*-\s*(?P<last>[0-9]{1,9})?)")


class Limits(Protocol):
    """Limits of a document's size. The documents flow's settings have these fields, and error messages name them."""

    @property
    def max_upload_mb(self) -> int: ...
    @property
    def max_pages(self) -> int: ...
    @property
    def max_page_points(self) -> float: ...


@dataclass(frozen=True)
class SourceInfo:
    """An accepted input. Its content decides the `type`, not its name."""

    type: FileType
    pages: int
    size_bytes: int
    texts: str = ""
    """For a `TextType`, the text of each page, as `text.units` stores them; empty for others."""


def check_file(path: Path, limits: Limits, name: str = "") -> PageType | None:
    """Check a file by its size and first bytes; the rest is to be read by `text.units.inspect`. Return its type; None
    if it may hold text.

    `name`: the file's own name. Raises `UserError` with code `missing`, `directory`, `unreadable`, `empty`,
    `too_large` or `unsupported`.
    """
    size, called = _file_size(path), name or path.name
    if size == 0:
        raise UserError(f"{called} is empty; export or download it again.", code="empty")
    if size > limits.max_upload_mb * 1_000_000:
        raise UserError(
            f"{called} has {size / 1e6:,.0f} MB, more than the accepted {limits.max_upload_mb} MB; "
            "split it or raise documents.max_upload_mb.",
            code="too_large",
        )
    try:
        head = read_head(path)
    except OSError as error:
        raise unreadable(path) from error
    detected = detect(head)
    if detected == "pdf" and not is_pdf(head, called) and may_hold_text(head, called):
        return None
    if detected is None and not may_hold_text(head, called):
        raise unsupported(called)
    return detected


def unsupported(name: str) -> UserError:
    return UserError(f"{name} is not of a supported type; {ACCEPTED} are accepted.", code="unsupported")


def check_page_count(name: str, pages: int, limits: Limits) -> None:
    """Raise `UserError` with code `no_pages` or `too_many_pages`."""
    if pages < 1:
        raise UserError(f"{name} has no pages.", code="no_pages")
    if pages > limits.max_pages:
        raise UserError(
            f"{name} has more than {limits.max_pages:,} pages; split it or raise documents.max_pages.",
            code="too_many_pages",
        )


def _file_size(path: Path) -> int:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{path} does not exist; check the path.", code="missing") from error
    except (OSError, ValueError) as error:  # no permission for its folder; a NUL in its name
        raise unreadable(path) from error
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{path} is a folder; name the files in it.", code="directory")
    if not stat.S_ISREG(status.st_mode):  # Opening a named pipe would wait for ever.
        raise UserError(f"{path} is not an ordinary file; {ACCEPTED} are accepted.", code="unsupported")
    return status.st_size


def unreadable(path: Path) -> UserError:
    return UserError(f"{path} cannot be read; check its permissions.", code="unreadable")


def parse_page_range(text: str, pages: int) -> list[int]:
    """Return the page numbers that `text` names in a document of `pages` pages, ascending and without repeats.

    `1-5,7` names six pages, `3-` the pages from the third on, `-4` the first four, an empty text all. Raises
    `UserError` with code `page_range`, also for a page that the document does not have.
    """
    if not text.strip():
        return list(range(1, pages + 1))
    numbers: set[int] = set()
    for part in text.split(","):
        numbers.update(_parse_part(part.strip(), pages))
    return sorted(numbers)


_ANY = 10**9
"""The assumed page count of an unopened document."""


def check_page_range(text: str) -> None:
    """Raise `UserError` with code `page_range` unless `text` is a valid page range of some document."""
    for part in text.split(",") if text.strip() else ():
        _parse_part(part.strip(), _ANY)


def _parse_part(part: str, pages: int) -> range:
    match = _RANGE.fullmatch(part)
    if match is None or not any(match.groups()):
        raise _bad_range(part, "is not a page or range; write for example 1-5,7", pages)
    first = int(match["only"] or match["first"] or 1)
    last = int(match["only"] or match["last"] or max(first, pages))
    if first > last:
        raise _bad_range(part, "is the wrong way round", pages)
    if first < 1 or last > pages:
        raise _bad_range(part, "is outside the document", pages)
    return range(first, last + 1)


def _bad_range(part: str, problem: str, pages: int) -> UserError:
    shown = part if len(part) <= 40 else f"{part[:40]}…"
    range_note = "" if pages == _ANY else f"; the document has pages 1 to {pages}"
    return UserError(f"“{shown}” {problem}{range_note}.", code="page_range")


def safe_filename(name: str) -> str:
    """Return a safe name for display and storage: the last part of a stranger's file name, without dangerous parts.

    It is never empty, has at most `MAX_NAME_BYTES` in UTF-8, keeps the suffix, and has no folders, control characters
    or characters with a meaning for shells or file systems. A safe name stays unchanged.
    """
    last = unicodedata.normalize("NFC", name).replace("\\", "/").rstrip("/").rpartition("/")[2]
    # Control, format (writing direction), surrogate and private characters: category C.
    shown = "".join(" " if char.isspace() else char for char in last)
    shown = "".join(char for char in shown if not unicodedata.category(char).startswith("C"))
    shown = re.sub(r'[<>:"|?*]', "_", shown)
    stem, dot, suffix = shown.rpartition(".")
    stem, suffix = (stem, suffix.strip()) if dot else (suffix, "")
    if len(suffix.encode()) > _MAX_SUFFIX_BYTES:
        stem, suffix = f"{stem}.{suffix}", ""
    ending = f".{suffix}" if suffix else ""
    kept = stem.strip(" .").encode()[: MAX_NAME_BYTES - len(ending.encode())].decode(errors="ignore").strip(" .")
    safe = f"{kept or 'file'}{ending}"
    # Cutting may have exposed another suffix at the end.
    return safe if safe == name else safe_filename(safe)


def safe_stem(filename: str) -> str:
    """Return the name without its last suffix, short enough to append `.manifest.json` and a temporary suffix."""
    return safe_filename(Path(safe_filename(filename)).stem)

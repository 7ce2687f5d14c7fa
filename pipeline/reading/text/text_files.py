"""Read the text of files of many kinds, with pages where the kind has them."""

import os
import stat
from dataclasses import replace
from pathlib import Path

from pipeline.engine.errors import UnitError
from pipeline.reading.files.filetype import HEAD_BYTES
from pipeline.reading.files.user_file import passes
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits, Progress, Unwanted, Wanted, check_characters, refused
from pipeline.reading.text import charset
from pipeline.reading.text.content_type import DECODED, Kind, kind_by_head
from pipeline.reading.text.sections import Reading, Section

_DECODED_HERE_BYTES = 1_000_000
"""Text up to this size is decoded in this process: decoding is harmless."""

_LEAST_S, _MOST_S, _S_PER_MB = 30, 300, 2
_LEAST_MB, _MB_PER_MB = 1_000, 15
"""Time and memory for a file without pages grow with its size."""

_Identity = tuple[int, int, int, int, int]


def read_file(
    path: Path, filename: str, limits: Limits, wanted: Wanted, progress: Progress = lambda _: None
) -> Reading:
    """Return the text of the file at `path`, whose content and `filename` decide its kind. A child reads all but small
    UTF-8 texts.

    Raises `Unwanted`, or `UnitError`: permanent with code `missing`, `empty`, `no_text`, `unsupported`, `encrypted`,
    `corrupt`, `unreadable`, `no_pages`, `too_many_pixels`, `too_large` or `too_slow`; transient with code `changed` if
    the file changed during reading, `io_error`, `no_reader` or `reader_killed`. Raises an `OSError` that may pass.
    """
    if not wanted():
        raise Unwanted(f"{filename} is no longer wanted.")
    before = _identity(path, filename, limits)
    kind = _kind(path, filename)
    within = limits if kind in {Kind.PDF, Kind.PICTURE} else text_limits(path, limits)
    reading = _decoded(path, filename, kind) or read_by_child("file", path, filename, within, wanted, progress)
    if _identity(path, filename, limits) != before:
        raise UnitError(f"{filename} changed while it was read; read it again when it is complete.", code="changed")
    if not any(section.text.strip() for section in reading.sections):
        raise refused(f"No text was found in {filename}.", "no_text")
    check_characters(sum(len(section.text) for section in reading.sections), filename, limits)
    progress(1.0)
    return reading


_LIMITS = Limits()


def text_limits(path: Path, limits: Limits = _LIMITS) -> Limits:
    """Return these limits, cut to what the size of a file that holds its text justifies: a small one that takes
    minutes, or gigabytes, is hostile. Raises `OSError`."""
    megabytes = path.stat().st_size / 1e6
    allowed_s = min(_MOST_S, _LEAST_S + _S_PER_MB * megabytes)
    memory_mb = int(_LEAST_MB + _MB_PER_MB * megabytes)
    return replace(
        limits,
        timeout_s=min(limits.timeout_s, allowed_s),
        total_s=min(limits.total_s, allowed_s),
        memory_mb=min(limits.memory_mb, memory_mb),
    )


def read_by_child(
    task: str, path: Path, name: str, limits: Limits, wanted: Wanted, progress: Progress, charset: str = ""
) -> Reading:
    """Let a child read the file at `path`, and return its text. `task`: `file` or `page` (a web page, whose address is
    `name`).

    `charset`: the encoding named by the server. Raises `Unwanted`, or `UnitError`: permanent if the content cannot be
    read, exceeds a limit or crashes the child; transient if no child starts.
    """
    answer = child.run({"task": task, "path": str(path.absolute()), "charset": charset}, name, limits, wanted, progress)
    sections = [Section(text, page, source, plain) for text, page, source, plain in answer["sections"]]
    return Reading(answer["title"], sections, answer["warnings"])


def _identity(path: Path, filename: str, limits: Limits) -> _Identity:
    """Return device, inode, size and times of the file, to notice a change. Raises `UnitError` (permanent) if the file
    is missing, not ordinary, empty or too large, or may not be read, and an `OSError` that may pass."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        if passes(error):
            raise
        raise refused(f"{filename} does not exist, or cannot be inspected.", "missing") from error
    if not stat.S_ISREG(status.st_mode):
        raise refused(f"{filename} is not an ordinary file.", "unsupported")
    if not os.access(path, os.R_OK):
        raise refused(f"{filename} cannot be read; check its permissions.", "unreadable")
    if status.st_size == 0:
        raise refused(f"{filename} is empty.", "empty")
    if status.st_size > limits.max_bytes:
        size = f"{status.st_size / 1e6:,.0f} MB, more than the accepted {limits.max_bytes / 1e6:,.0f} MB"
        raise refused(f"{filename} has {size}; split it.", "too_large")
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _kind(path: Path, filename: str) -> Kind | None:
    with path.open("rb") as file:
        return kind_by_head(file.read(HEAD_BYTES), filename)


def _decoded(path: Path, filename: str, kind: Kind | None) -> Reading | None:
    """Return the text of a small file in plain UTF-8; otherwise None."""
    if kind not in DECODED or filename.endswith(".ipynb"):
        return None
    with path.open("rb") as file:
        data = file.read(_DECODED_HERE_BYTES + 1)
    if len(data) > _DECODED_HERE_BYTES:
        return None
    text = charset.utf8(data)
    return None if text is None else Reading("", [Section(text, plain=kind == Kind.PLAIN)])

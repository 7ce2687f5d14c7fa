"""ZIP archives of documents: unpack them in a child, within limits, and refuse what must not be unpacked.

Office files and books are ZIP files too, and stay documents.
"""

import shutil
import stat
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.engine.errors import UnitError, UserError, told
from pipeline.reading.files import source
from pipeline.reading.files.filetype import ZIP_MAGICS, read_head
from pipeline.reading.files.source import safe_filename
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits, Task, Wanted, refused
from pipeline.reading.text.content_type import (
    ARCHIVE,
    UNREADABLE,
    check_packed,
    damaged,
    is_document,
    kind_of,
    text_type,
)

_CAPS = Limits(timeout_s=60, total_s=120, memory_mb=500, max_written_bytes=Limits.max_unpacked_bytes)
_DOCUMENT_STARTS = (b"[Content_Types].xml", b"mimetype", b"_rels/", b"docProps/")
"""The names of the first entry in Office files and books, by which most of them are known without reading more."""
_NAME_AT = 30
_MAX_DEPTH = 32
_FILES_FOR_EACH = 4
"""Files of an archive, convertible or not, for each that it may have to convert."""
_HIDDEN = "__MACOSX"
_SHORT = {
    ARCHIVE: "an archive within the archive",
    "unsupported": "not of a type that Penstock converts",
    "empty": "it is empty",
}
"""Reasons of refusals, by code, for lists that name the file already."""


@dataclass(frozen=True)
class Entry:
    """A file of an archive. `name`: its path inside, made safe; `path`: where it is unpacked, None if it is refused for
    `reason`."""

    name: str
    path: Path | None
    reason: str = ""


def may_be_archive(path: Path) -> bool:
    """Whether the file begins like a ZIP archive, and not like an Office file or a book. False if it cannot be read."""
    try:
        head = read_head(path)
    except OSError:
        return False
    return head.startswith(ZIP_MAGICS) and not head.startswith(_DOCUMENT_STARTS, _NAME_AT)


@contextmanager
def unpacked(
    path: Path,
    name: str,
    limits: source.Limits,
    parent: Path | None = None,
    wanted: Wanted = lambda: True,
    most: int | None = None,
) -> Iterator[list[Entry] | None]:
    """Yield the files of the archive at `path`, called `name`, in its order; None if it is an Office file or a book.
    Their copies last as long as the block, in a folder in `parent`, by default that of temporary files.

    Leaves out hidden files. Refuses links, paths out of the archive, encrypted files, archives within, second files of
    a name, and types that Penstock does not convert. Raises `Unwanted`, or `UserError` for an archive that is damaged,
    unpacks to too much, has more than `most` files to convert, or far more other files.
    """
    size = {name: getattr(limits, name) for name in ("max_upload_mb", "max_pages", "max_page_points")}
    with TemporaryDirectory(prefix="incoming-", dir=parent) as folder:
        task = {
            "task": "unpack",
            "path": str(path.absolute()),
            "folder": folder,
            "writes": [folder],
            "size": size,
            "most": most,
        }
        try:
            entries = child.ask_about_file(task, name, wanted, _CAPS)["entries"]
        except UnitError as error:
            raise UserError(str(error), code=error.code) from error
        yield (
            None
            if entries is None
            else [Entry(inside, None if reason else Path(folder, inside), reason) for inside, reason in entries]
        )


@dataclass(frozen=True)
class _Size:
    """The `source.Limits` of a task."""

    max_upload_mb: int
    max_pages: int
    max_page_points: float


def unpack(task: Task) -> dict[str, Any]:
    """Unpack an archive into a folder. Runs in the child."""
    name, folder, size = task["name"], Path(task["folder"]), _Size(**task["size"])
    try:
        with zipfile.ZipFile(task.path) as archive:
            infos = archive.infolist()
            check_packed(infos, name, task.limits)
            if is_document(archive.NameToInfo):
                return {"entries": None}
            files = [info for info in infos if not (info.is_dir() or _is_hidden(info))]
            if task["most"] is not None and len(files) > _FILES_FOR_EACH * task["most"]:
                raise _too_many(task, len(files))
            return {"entries": list(_entries(archive, files, folder, size, task))}
    except UNREADABLE as error:
        raise damaged(name, error) from error


def _entries(
    archive: zipfile.ZipFile, infos: Sequence[zipfile.ZipInfo], folder: Path, size: source.Limits, task: Task
) -> Iterator[tuple[str, str]]:
    """Unpack each file; yield its path inside and the reason of its refusal, empty for none."""
    seen: set[str] = set()
    kept = 0
    for info in infos:
        parts = _parts(info)
        inside = "/".join(safe_filename(part) for part in parts[-_MAX_DEPTH:])
        reason = _refusal(info, parts) or ("a second file of this name" if inside.casefold() in seen else "")
        seen.add(inside.casefold())
        reason = reason or _unpack_one(archive, info, folder / inside, size, task.limits)
        kept += not reason
        if task["most"] is not None and kept > task["most"]:
            raise _too_many(task, len(infos))
        yield inside, reason
        task.progress(0.0)


def _too_many(task: Task, files: int) -> UnitError:
    message = f"{task['name']} has {files:,} files, more than the accepted {task['most']:,} to convert; split it."
    return refused(message, "too_large")


def _parts(info: zipfile.ZipInfo) -> list[str]:
    return info.filename.replace("\\", "/").split("/")


def _is_hidden(info: zipfile.ZipInfo) -> bool:
    return any(part == _HIDDEN or (part.startswith(".") and part.strip(".")) for part in _parts(info))


def _refusal(info: zipfile.ZipInfo, parts: Sequence[str]) -> str:
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in {0, stat.S_IFREG}:
        return "not an ordinary file"
    if ".." in parts or not parts[0] or parts[0].endswith(":") or len(parts) > _MAX_DEPTH:
        return "its path leads out of the archive"
    return "it needs a password" if info.flag_bits & 1 else ""


def _unpack_one(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, size: source.Limits, limits: Limits
) -> str:
    """Unpack a file, and return why Penstock does not convert it; then it is removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(info) as packed, path.open("xb") as file:
            shutil.copyfileobj(packed, file, 2**20)  # at most the declared size, which the caller has checked
        if source.check_file(path, size) is None and not text_type(kind_of(path, path.name, limits), path.name):
            raise source.unsupported(path.name)
        return ""
    except (UserError, UnitError) as error:
        reason = _SHORT.get(error.code, told(error))
    except UNREADABLE as error:
        reason = f"it cannot be unpacked: {told(error)}"
    with suppress(OSError):  # its folder may be a file
        path.unlink()
    return reason

"""The files of frames. A file exists before and after its row, so that no row lacks its file."""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from uuid import uuid4

from sqlalchemy import select

from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.flows.screenshots.models import SHOTS
from pipeline.reading.files.filetype import is_temporary
from pipeline.reading.files.user_file import NotOrdinary, open_file
from pipeline.settings import Settings
from pipeline.storage import installation
from pipeline.storage.context import Context

SUFFIX_OF = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif"}
SUFFIXES = {*SUFFIX_OF.values(), ".jpeg", ".tiff"}
ORPHAN_AGE_S = 3600.0
_PORTION = 500
_INCOMING, _RENDITIONS = "incoming-", "renditions"


class Kind(StrEnum):
    """A kind of rendition, as the suffix of the file's name: see `renditions`."""

    SMALL = "small.jpg"
    """A picture for lists."""
    LARGE = "large.jpg"
    """A picture that fills a screen."""
    TEXT = "text.json"
    """The lines of text with their places."""


def is_picture(path: Path) -> bool:
    """Whether the name is one of a finished picture, not of a temporary file."""
    return path.suffix.lower() in SUFFIXES and not is_temporary(path)


def path_of(settings: Settings, file: str) -> Path:
    """Return the path of a stored frame; `file`: the name in its row."""
    return settings.screenshot_dir / file


def read(picture: Path | bytes, max_mb: int) -> bytes:
    """Return a picture's bytes, which it reads once if it gets a path. Raises `UserError` if the file is missing, no
    ordinary file or unreadable, `UnitError` if the picture is too large."""
    if isinstance(picture, bytes):
        _check_size(len(picture), max_mb)
        return picture
    try:
        with open_file(picture) as file:
            _check_size(os.fstat(file.fileno()).st_size, max_mb)
            data = file.read(max_mb * 2**20 + 1)
    except NotOrdinary as error:
        raise UserError(f"{picture} is not a file", code="not_a_file") from error
    except FileNotFoundError as error:
        raise UserError(f"{picture} does not exist", code="not_found") from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read {picture}: {getattr(error, 'strerror', None) or error}", code="io_error"
        ) from error
    _check_size(len(data), max_mb)  # the file may have grown
    return data


@contextmanager
def incoming(settings: Settings, data: bytes) -> Iterator[Path]:
    """Yield a private copy of a frame's bytes; remove it at the end unless `place` kept it. Raises `UserError`."""
    copy = path_of(settings, f"{_INCOMING}{uuid4().hex}")
    try:
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if stat.S_IMODE(copy.parent.stat().st_mode) & 0o077:
            copy.parent.chmod(0o700)
        with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        with suppress(OSError):
            copy.unlink(missing_ok=True)
        raise _not_written(copy, error) from error
    try:
        yield copy
    finally:
        copy.unlink(missing_ok=True)


def place(copy: Path, form: str) -> str:
    """Flush a private copy to the disk, and keep it under a new name beside it; return the name. `form`: a key of
    `SUFFIX_OF`. Raises `UserError`."""
    name = f"{uuid4().hex}{SUFFIX_OF[form]}"
    try:
        with copy.open("rb") as file:
            os.fsync(file.fileno())
        copy.replace(copy.with_name(name))
    except OSError as error:
        raise _not_written(copy, error) from error
    return name


def _not_written(copy: Path, error: OSError) -> UserError:
    return UserError(f"cannot write to {copy.parent}: {error.strerror or error}", code="io_error")


def _check_size(size: int, max_mb: int) -> None:
    if size > max_mb * 2**20:
        message = f"it has {size / 2**20:.1f} MB; up to {max_mb} MB are accepted (screenshots.max_image_mb)"
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="too_large")


def rendition_of(settings: Settings, file: str, kind: Kind) -> Path:
    """Return the path of a frame's rendition, which may not exist yet."""
    return settings.screenshot_dir / _RENDITIONS / f"{file}.{kind}"


def keep_rendition(settings: Settings, file: str, kind: Kind, data: bytes) -> None:
    """Write a frame's rendition atomically, unless the frame's file is deleted. Raises `OSError`."""
    target = rendition_of(settings, file, kind)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = target.with_name(f"{_INCOMING}{uuid4().hex}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
            written.write(data)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    # `discard` removes the frame before its renditions: it removes this file, or the frame is missing here.
    if not path_of(settings, file).exists():
        target.unlink(missing_ok=True)


def discard(settings: Settings, files: Iterable[str]) -> int:
    """Remove frames' files and renditions; return how many of the frames had a file. Harmless for deleted files."""
    removed = 0
    for file in files:
        with suppress(FileNotFoundError):
            path_of(settings, file).unlink()
            removed += 1
        for kind in Kind:
            rendition_of(settings, file, kind).unlink(missing_ok=True)
    return removed


def remove_orphans(context: Context) -> int:
    """Remove files, older than an hour, that no row claims, and renditions of deleted frames; return how many. A crash
    leaves such files.

    Removes nothing if the data folder belongs to another database.
    """
    if not installation.belong_together(context):
        return 0
    folder = context.settings.screenshot_dir
    before = time.time() - ORPHAN_AGE_S
    old: list[str] = []
    for entry in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):
            if entry.name != _RENDITIONS and entry.stat().st_mtime < before:
                old.append(entry.name)
    removed = _remove_renditions(context, before)
    for start in range(0, len(old), _PORTION):
        portion = old[start : start + _PORTION]
        owned = select(SHOTS.c.file).where(SHOTS.c.file.in_(portion), SHOTS.c.storage_state == "stored")
        with context.db.read() as session:
            wanted = set(session.execute(owned).scalars())
        removed += discard(context.settings, set(portion) - wanted)
    return removed


def _remove_renditions(context: Context, before: float) -> int:
    """Remove renditions of deleted frames, and partial files."""
    folder, removed = context.settings.screenshot_dir / _RENDITIONS, 0
    for entry in folder.iterdir() if folder.is_dir() else ():
        file = next((entry.name.removesuffix(f".{kind}") for kind in Kind if entry.name.endswith(f".{kind}")), "")
        with suppress(FileNotFoundError):
            if entry.stat().st_mtime < before and not (file and path_of(context.settings, file).exists()):
                entry.unlink()
                removed += 1
    return removed

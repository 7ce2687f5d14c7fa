"""The places of stored copies of files and notes. Paths consist of ids and digests, never of users' texts."""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pipeline.engine.errors import UserError
from pipeline.reading.files.user_file import NotOrdinary, open_file, passes
from pipeline.settings import Settings

_PIECE = 1 << 20
_RETRY_S = (0.5, 1.0)
"""Waits before further attempts to copy a file that is locked, or on a drive that is away."""


def root(settings: Settings) -> Path:
    return settings.data_dir / "knowledge"


def folder(settings: Settings, item_id: str) -> Path:
    return root(settings) / item_id


def stored_path(settings: Settings, item_id: str, sha256: str) -> Path:
    """Return the path of a copy of an item's file, named by its content, so that a new copy replaces none under
    reading."""
    return folder(settings, item_id) / sha256


@contextmanager
def incoming(settings: Settings, source: Path, max_bytes: int, called: str = "") -> Iterator[tuple[Path, str, int]]:
    """Yield a private copy of a file, its SHA-256 and size; remove the copy at the end unless it was moved. `called`:
    its name in errors.

    Raises `UserError` for a file that is unreadable, no ordinary file, too large, or changed during the copying.
    """
    root(settings).mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(dir=root(settings), prefix="incoming-")
    copy = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as target:
            digest, size = _read_copy(source, target, max_bytes, called or source.name)
        yield copy, digest, size
    finally:
        copy.unlink(missing_ok=True)


def _read_copy(source: Path, target: BinaryIO, max_bytes: int, called: str) -> tuple[str, int]:
    """Like `_copied`, but try again while an error may pass."""
    waits_s = iter(_RETRY_S)
    while True:
        try:
            return _copied(source, target, max_bytes, called)
        except UserError as error:
            wait_s = next(waits_s, None)
            if wait_s is None or error.__cause__ is None or not passes(error.__cause__):
                raise
        time.sleep(wait_s)
        target.seek(0)
        target.truncate()


def _copied(source: Path, target: BinaryIO, max_bytes: int, called: str) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    message = f"{called} is larger than {max_bytes // 1_000_000} MB (PENSTOCK_KNOWLEDGE__MAX_FILE_MB)"
    too_large = UserError(message, code="too_large")
    try:
        with open_file(source, follow=False) as file:
            before = os.fstat(file.fileno())
            if before.st_size > max_bytes:  # Refuse a sparse file of a terabyte before copying it.
                raise too_large
            while piece := file.read(_PIECE):
                size += len(piece)
                if size > max_bytes:
                    raise too_large
                digest.update(piece)
                target.write(piece)
            after = os.fstat(file.fileno())
    except NotOrdinary as error:
        raise UserError(f"{called} is not a file", code="not_a_file") from error
    except OSError as error:
        raise UserError(f"{called}: {error.strerror or error}", code="io_error") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or size != after.st_size:
        raise UserError(f"{called} changed while it was read: add it again", code="changed")
    return digest.hexdigest(), size


def place(copy: Path, path: Path) -> None:
    """Move a private copy to its permanent path, and make the folder; replace a file that is there."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    copy.replace(path)


def keep_only(settings: Settings, item_id: str, sha256: str) -> None:
    """Remove the stored copies of an item's file that have another content than this one."""
    for entry in folder(settings, item_id).iterdir() if folder(settings, item_id).is_dir() else ():
        if entry.name != sha256:
            entry.unlink(missing_ok=True)


def remove(settings: Settings, item_id: str) -> None:
    """Remove the stored files of a deleted item; harmless without any."""
    shutil.rmtree(folder(settings, item_id), ignore_errors=True)


def discard(entry: Path) -> None:
    """Remove a file, or a folder with its contents; remove a link without following it."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)

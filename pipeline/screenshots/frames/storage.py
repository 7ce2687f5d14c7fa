"""Where frames are, and taking files in. A file is here before its row and goes after it: no row lacks its file."""

import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from sqlalchemy import select

from pipeline.engine.errors import UserError
from pipeline.screenshots.models import SHOTS
from pipeline.settings import Settings
from pipeline.storage.context import Context

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"}
ORPHAN_AGE_S = 3600.0
_PORTION = 500


def path_of(settings: Settings, file: str) -> Path:
    """Where a stored frame is."""
    return settings.screenshot_dir / file


def take_in(settings: Settings, source: Path) -> str:
    """Copy a file to a name of its own and flush it; that name. Raises `UserError`, with nothing left behind."""
    suffix = source.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{source} is no picture: {', '.join(sorted(SUFFIXES))}", code="unsupported")
    name = f"{uuid4().hex}{suffix}"
    copy = settings.screenshot_dir / name
    try:
        if source.stat().st_size > settings.screenshots.max_image_mb * 2**20:
            raise UserError(f"{source} is larger than {settings.screenshots.max_image_mb} MB", code="too_large")
        settings.screenshot_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(source, copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())
    except OSError as error:
        copy.unlink(missing_ok=True)
        code = "not_found" if isinstance(error, FileNotFoundError) else "io_error"
        raise UserError(f"{source}: {error.strerror or error}", code=code) from error
    return name


def discard(settings: Settings, files: Iterable[str]) -> int:
    """Remove files; harmless for those that are gone. How many there were."""
    removed = 0
    for file in files:
        with suppress(FileNotFoundError):
            path_of(settings, file).unlink()
            removed += 1
    return removed


def remove_orphans(context: Context) -> int:
    """Remove files that no row came to own, or whose row gave them up, left by a crash between the two."""
    folder = context.settings.screenshot_dir
    before = time.time() - ORPHAN_AGE_S
    old: list[str] = []
    for entry in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):
            if entry.stat().st_mtime < before:
                old.append(entry.name)
    removed = 0
    for start in range(0, len(old), _PORTION):
        portion = old[start : start + _PORTION]
        owned = select(SHOTS.c.file).where(SHOTS.c.file.in_(portion), SHOTS.c.storage_state == "stored")
        with context.db.read() as session:
            wanted = set(session.execute(owned).scalars())
        removed += discard(context.settings, set(portion) - wanted)
    return removed

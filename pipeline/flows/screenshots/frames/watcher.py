"""Watches a folder that another program saves screenshots in: gives each file once, when it is complete."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from watchfiles import Change
from watchfiles import watch as changes_in

from pipeline.engine.errors import UserError
from pipeline.flows.screenshots.frames.files import SUFFIXES

SETTLE_S = 0.5
"""A file that keeps its size and time this long is complete. If it changes after all, it is given again."""
POLL_MS = 200
_TEMPORARY = (".", "~", "#")


class _Look(NamedTuple):
    size: int
    mtime_ns: int


def watch(folder: Path, stop: threading.Event, *, existing: bool = False, settle_s: float = SETTLE_S) -> Iterator[Path]:
    """New pictures in `folder` (not below it) in the order they were written, until `stop` is set.

    New is what comes after this call; with `existing`, first those already there. A file that is rewritten is given
    again. Raises `UserError` if the folder does not exist, or goes away.
    """
    _check(folder)
    return _watch(folder, stop, {} if existing else _pictures(folder), settle_s)


def _watch(folder: Path, stop: threading.Event, given: dict[Path, _Look], settle_s: float) -> Iterator[Path]:
    waiting: dict[Path, tuple[_Look, float]] = {}
    # The first turn comes without a change, once the folder is watched: what came before is found by listing it.
    fresh = True
    for found in changes_in(
        folder, watch_filter=lambda _, path: is_picture(Path(path)), stop_event=stop, recursive=False,
        yield_on_timeout=True, rust_timeout=POLL_MS, step=50, debounce=400, raise_interrupt=True,
    ):  # fmt: skip
        _check(folder)
        for path in {Path(path) for change, path in found if change is Change.deleted}:
            given.pop(path, None)
        named = {Path(path) for change, path in found if change is not Change.deleted}
        for path in {*named, *(_pictures(folder) if fresh else ())}:
            waiting.setdefault(path, (_Look(-1, -1), 0.0))
        fresh = False
        yield from _whole(waiting, given, settle_s)


def is_picture(path: Path) -> bool:
    """Whether a file's name is that of a picture, and not of one that is still being written."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(_TEMPORARY)


def _whole(waiting: dict[Path, tuple[_Look, float]], given: dict[Path, _Look], settle_s: float) -> list[Path]:
    """Move what has not changed for long enough from `waiting` to `given`; those files, in the order of writing."""
    now = time.monotonic()
    found: list[tuple[int, Path]] = []
    for path, (before, since) in list(waiting.items()):
        look = _look(path)
        if look is None or look == given.get(path):
            del waiting[path]
        elif look != before:
            waiting[path] = (look, now)
        elif look.size and now - since >= settle_s:
            del waiting[path]
            given[path] = look
            found.append((look.mtime_ns, path))
    return [path for _, path in sorted(found)]


def _pictures(folder: Path) -> dict[Path, _Look]:
    looks = {path: _look(path) for path in folder.iterdir() if is_picture(path)}
    return {path: look for path, look in looks.items() if look is not None}


def _look(path: Path) -> _Look | None:
    """None if it is gone, or not a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return _Look(found.st_size, found.st_mtime_ns) if path.is_file() else None


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", code="not_found")

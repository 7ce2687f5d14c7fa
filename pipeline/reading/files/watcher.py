"""Watches a folder that other programs save files in: gives each file once, when it is complete."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from watchfiles import Change
from watchfiles import watch as changes_in

from pipeline.engine.errors import UserError
from pipeline.reading.files.user_file import is_file_below, walk

SETTLE_S = 0.5
"""A file that keeps its size and time this long is complete. If it changes after all, it is given again."""
LIST_AGAIN_S = 60.0
"""How often the folder is listed for what the system did not report, as network drives do not."""
POLL_MS = 200
Wanted = Callable[[Path], bool]


class _Look(NamedTuple):
    size: int
    mtime_ns: int


def watch(
    folder: Path, wanted: Wanted, stop: threading.Event, *, existing: bool = False, settle_s: float = SETTLE_S
) -> Iterator[Path]:
    """Wanted files in `folder` (not below it) that are new, in the order they were written, until `stop` is set.

    New is what comes after this call; with `existing`, first those already there. A file that is rewritten is given
    again. Raises `UserError` if the folder does not exist, or goes away.
    """
    found = turns(folder, wanted, stop, existing=existing, settle_s=settle_s)
    return (path for paths in found for path in paths)


def turns(
    folder: Path,
    wanted: Wanted,
    stop: threading.Event,
    *,
    existing: bool = False,
    below: bool = False,
    settle_s: float = SETTLE_S,
) -> Iterator[list[Path]]:
    """The same, given several times a second with what is new then, often nothing. `below`: also in its folders."""
    _check(folder)
    return _Watched(folder, wanted, below, settle_s).turns(stop, existing=existing)


class _Watched:
    """What is known of the files in a folder."""

    def __init__(self, folder: Path, wanted: Wanted, below: bool, settle_s: float) -> None:
        self._folder = folder
        self._root = folder.resolve()
        self._wanted = wanted
        self._below = below
        self._settle_s = settle_s
        self._waiting: dict[Path, tuple[_Look, float]] = {}
        self._given: dict[Path, _Look] = {}

    def turns(self, stop: threading.Event, *, existing: bool) -> Iterator[list[Path]]:
        if not existing:
            looks = {path: self._look(path) for path in self._listed(self._folder)}
            self._given = {path: look for path, look in looks.items() if look is not None}
        return self._turns(stop)

    def _turns(self, stop: threading.Event) -> Iterator[list[Path]]:
        # The first turn comes without a change, once the folder is watched: what came before is found by listing it.
        listed_at = float("-inf")
        for found in changes_in(
            self._folder,
            watch_filter=lambda _, path: self._concerns(Path(path)),
            stop_event=stop,
            recursive=self._below,
            yield_on_timeout=True,
            rust_timeout=POLL_MS,
            step=50,
            debounce=400,
            raise_interrupt=True,
        ):
            _check(self._folder)
            for path in {Path(path) for change, path in found if change is Change.deleted}:
                self._given.pop(path, None)
            self._note(Path(path) for change, path in found if change is not Change.deleted)
            if time.monotonic() - listed_at >= LIST_AGAIN_S:
                listed_at = time.monotonic()
                self._note([self._folder])
            yield self._whole()

    def _concerns(self, path: Path) -> bool:
        return self._wanted(path) or (self._below and path.is_dir())

    def _note(self, paths: Iterable[Path]) -> None:
        """Begin to look at these files, and at those in these folders, which came whole if they were moved here."""
        for path in paths:
            for one in self._listed(path) if path.is_dir() else [path]:
                self._waiting.setdefault(one, (_Look(-1, -1), 0.0))

    def _listed(self, folder: Path) -> list[Path]:
        if not self._below:
            return [path for path in folder.iterdir() if self._wanted(path)]
        files = (Path(parent, name) for parent, _, names in walk(folder) for name in names)
        return [path for path in files if self._wanted(path)]

    def _whole(self) -> list[Path]:
        """Move what has not changed for long enough from waiting to given; those files, in the order of writing."""
        now = time.monotonic()
        found: list[tuple[int, Path]] = []
        for path, (before, since) in list(self._waiting.items()):
            look = self._look(path)
            if look is None or look == self._given.get(path):
                del self._waiting[path]
            elif look != before:
                self._waiting[path] = (look, now)
            elif look.size and now - since >= self._settle_s:
                del self._waiting[path]
                self._given[path] = look
                found.append((look.mtime_ns, path))
        return [path for _, path in sorted(found)]

    def _look(self, path: Path) -> _Look | None:
        """None if it is gone, no file, or a link that leads out of the folder."""
        try:
            found = path.stat()
        except OSError:
            return None
        return _Look(found.st_size, found.st_mtime_ns) if is_file_below(path, self._root) else None


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", code="not_found")

"""Watch a folder in which other programs save files, and yield each file once, when it is complete."""

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
"""A file whose size and time stay unchanged this long is complete. A later change yields it again."""
LIST_EVERY_S = 60.0
"""How often to list the folder for unreported changes: network drives report none."""
POLL_MS = 200
Wanted = Callable[[Path], bool]


class _FileState(NamedTuple):
    size: int
    mtime_ns: int


def watch(
    folder: Path, wanted: Wanted, stop: threading.Event, *, existing: bool = False, settle_s: float = SETTLE_S
) -> Iterator[Path]:
    """Yield new files in `folder` (not below it) that satisfy `wanted`, in order of writing, until `stop` is set.

    Files are new if they appear after this call; `existing` yields present files first. A file is yielded once it has
    stayed unchanged and not empty for `settle_s`, and again if it is rewritten. Raises `UserError` at once if the
    folder does not exist, and from the iterator if it disappears.
    """
    batches = poll(folder, wanted, stop, existing=existing, settle_s=settle_s)
    return (path for paths in batches for path in paths)


def poll(
    folder: Path,
    wanted: Wanted,
    stop: threading.Event,
    *,
    existing: bool = False,
    below: bool = False,
    settle_s: float = SETTLE_S,
) -> Iterator[list[Path]]:
    """Yield a batch of new files several times a second, often an empty one, until `stop` is set. `below`: include
    subfolders.

    Files are new if they appear after this call; `existing` yields present files first. A file is yielded once it has
    stayed unchanged and not empty for `settle_s`, and again if it is rewritten. Raises `UserError` at once if the
    folder does not exist, and from the iterator if it disappears.
    """
    _check(folder)
    return _Watched(folder, wanted, below, settle_s).batches(stop, existing=existing)


class _Watched:
    """Tracks the files of one folder: those being written, and those already yielded."""

    def __init__(self, folder: Path, wanted: Wanted, below: bool, settle_s: float) -> None:
        self._folder = folder
        self._root = folder.resolve()
        self._wanted = wanted
        self._below = below
        self._settle_s = settle_s
        self._waiting: dict[Path, tuple[_FileState, float]] = {}
        self._yielded: dict[Path, _FileState] = {}

    def batches(self, stop: threading.Event, *, existing: bool) -> Iterator[list[Path]]:
        if not existing:
            states = {path: self._state(path) for path in self._listed(self._folder)}
            self._yielded = {path: state for path, state in states.items() if state is not None}
        return self._poll(stop)

    def _poll(self, stop: threading.Event) -> Iterator[list[Path]]:
        # The first round comes without a change, once the watch is active; listing then finds earlier files.
        listed_at = float("-inf")
        for changes in changes_in(
            self._folder,
            watch_filter=lambda _, path: self._matters(Path(path)),
            stop_event=stop,
            recursive=self._below,
            yield_on_timeout=True,
            rust_timeout=POLL_MS,
            step=50,
            debounce=400,
            raise_interrupt=True,
        ):
            _check(self._folder)
            for path in {Path(path) for change, path in changes if change is Change.deleted}:
                self._yielded.pop(path, None)
            self._note(Path(path) for change, path in changes if change is not Change.deleted)
            if time.monotonic() - listed_at >= LIST_EVERY_S:
                listed_at = time.monotonic()
                self._note([self._folder])
            yield self._complete()

    def _matters(self, path: Path) -> bool:
        return self._wanted(path) or (self._below and path.is_dir())

    def _note(self, paths: Iterable[Path]) -> None:
        """Start to observe these files, and the files in these folders: a moved folder arrives with its files."""
        for path in paths:
            for file in self._listed(path) if path.is_dir() else [path]:
                self._waiting.setdefault(file, (_FileState(-1, -1), 0.0))

    def _listed(self, folder: Path) -> list[Path]:
        if not self._below:
            return [path for path in folder.iterdir() if self._wanted(path)]
        files = (Path(parent, name) for parent, _, names in walk(folder) for name in names)
        return [path for path in files if self._wanted(path)]

    def _complete(self) -> list[Path]:
        """Return the files that have stayed unchanged long enough, in order of writing, and mark them as yielded."""
        now = time.monotonic()
        complete: list[tuple[int, Path]] = []
        for path, (before, since) in list(self._waiting.items()):
            state = self._state(path)
            if state is None or state == self._yielded.get(path):
                del self._waiting[path]
            elif state != before:
                self._waiting[path] = (state, now)
            elif state.size and now - since >= self._settle_s:
                del self._waiting[path]
                self._yielded[path] = state
                complete.append((state.mtime_ns, path))
        return [path for _, path in sorted(complete)]

    def _state(self, path: Path) -> _FileState | None:
        """Return the file's size and time; None if it is missing, not a file, or a link that leads out of the
        folder."""
        try:
            status = path.stat()
        except OSError:
            return None
        return _FileState(status.st_size, status.st_mtime_ns) if is_file_below(path, self._root) else None


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", code="not_found")

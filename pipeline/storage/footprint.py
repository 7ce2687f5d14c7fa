"""How much room there is, and how much of it the data folder takes."""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.wire import VIEW

PATIENCE_S = 0.5


@dataclass(frozen=True)
class Footprint:
    """What the data folder takes, in bytes."""

    __pydantic_config__ = VIEW
    counted: int
    """Of the files that could be looked at in half a second."""
    files: int
    is_whole: bool
    """These are all files."""
    free: int
    """On its disk."""
    disk: int


def footprint(folder: Path, patience_s: float = PATIENCE_S) -> Footprint:
    """What this folder takes. Looks no longer than so many seconds. Raises `OSError` if it cannot be looked into."""
    until = time.monotonic() + patience_s
    room = shutil.disk_usage(folder)
    counted = files = 0
    folders = [str(folder)]
    while folders and time.monotonic() < until:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        counted += entry.stat(follow_symlinks=False).st_size
                        files += 1
        except OSError:  # it has gone meanwhile
            continue
    return Footprint(counted, files, not folders, room.free, room.total)

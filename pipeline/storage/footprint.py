"""How much room there is, and how much of it the data folder takes."""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 0.5


@dataclass(frozen=True)
class Footprint:
    """Bytes. `counted` is of as many files as could be looked at in time; `is_whole`: of all."""

    counted: int
    files: int
    is_whole: bool
    free: int
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

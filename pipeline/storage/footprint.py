"""The size of the data folder, and the free space on its disk."""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.wire import VIEW

PATIENCE_S = 0.5


@dataclass(frozen=True)
class Footprint:
    """Disk usage of the data folder, in bytes."""

    __pydantic_config__ = VIEW
    counted: int
    """Size of the files that could be measured in half a second."""
    files: int
    is_whole: bool
    """Whether all files were measured."""
    free: int
    """Free space on its disk."""
    disk: int


def footprint(folder: Path, patience_s: float = PATIENCE_S) -> Footprint:
    """Count the files in a folder and its folders, and add up their sizes, for at most `patience_s`; `is_whole` says
    whether that was enough. Leaves out what disappears or cannot be read. Raises `OSError` if the folder's disk cannot
    be read."""
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
        except OSError:  # it disappeared
            continue
    return Footprint(counted, files, not folders, room.free, room.total)

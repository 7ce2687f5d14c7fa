"""Keep Penstock's files and processes private. Results for other places get the user's own modes."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from pipeline.engine import linux

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
_OTHERS = 0o077
_users_umask: list[int] = []


def begin() -> None:
    """Make new files of this process private to its user, and its memory and environment private to itself: on Linux no
    other process of the user may read them. For entry points: a library changes nothing in its program."""
    before = os.umask(_OTHERS)
    _users_umask[:] = _users_umask or [before]
    linux.set_dumpable(False)


def users_mode(full: int) -> int:
    """Return the mode `full` (0o666 for a file, 0o777 for a folder) less the umask with which this process started,
    before `begin`."""
    if _users_umask:
        return full & ~_users_umask[0]
    current = os.umask(_OTHERS)
    os.umask(current)
    return full & ~current


def make_users_folder(folder: Path) -> None:
    """Make a folder and its missing parents with the user's umask. Raises `OSError`."""
    missing = [folder, *folder.parents][: _depth_missing(folder)]
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
        parent.chmod(users_mode(0o777))


def _depth_missing(folder: Path) -> int:
    return next((depth for depth, parent in enumerate([folder, *folder.parents]) if parent.exists()), 0)


def is_open(path: Path) -> bool:
    """Whether other users may read, write or enter this path; False if it does not exist."""
    with suppress(OSError):
        return bool(stat.S_IMODE(path.lstat().st_mode) & _OTHERS)
    return False


def close(folder: Path, inside: tuple[str, ...] = ()) -> bool:
    """Take all rights of other users off a folder of this user; return whether they have none now. A missing folder
    counts as closed.

    Leaves shared folders such as /tmp, the user's home and other users' folders unchanged. In these it closes the
    entries named in `inside` instead, and returns False.
    """
    if not is_open(folder):
        return True
    if _is_private_to_us(folder) and _restrict(folder):
        return True
    for name in inside:
        path = folder / name
        if is_open(path) and not path.is_symlink() and path.lstat().st_uid == os.geteuid():
            _restrict(path)
    return False


def _is_private_to_us(folder: Path) -> bool:
    status = folder.lstat()
    for_all = status.st_mode & stat.S_ISVTX or folder in {Path("/"), Path.home()}
    return not for_all and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _restrict(path: Path) -> bool:
    try:
        path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~_OTHERS)
    except OSError:  # another user's path, or a file system without modes
        return False
    return not is_open(path)

"""Who may read what Penstock writes: the user that it runs as alone. Results that go elsewhere are the user's own."""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
_OTHERS = 0o077
_users_umask: list[int] = []


def begin() -> None:
    """Let what this process creates be its user's alone. For entry points: a library leaves a program's umask alone."""
    before = os.umask(_OTHERS)
    _users_umask[:] = _users_umask or [before]


def users_mode(full: int) -> int:
    """What `full` (0o666 for a file, 0o777 for a folder) comes to by the umask that this process was started with."""
    if _users_umask:
        return full & ~_users_umask[0]
    current = os.umask(_OTHERS)
    os.umask(current)
    return full & ~current


def make_users_folder(folder: Path) -> None:
    """Make a folder of the user's, with those above it, by the user's umask. Raises `OSError`."""
    missing = [folder, *folder.parents][: _depth_missing(folder)]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        one.chmod(users_mode(0o777))


def _depth_missing(folder: Path) -> int:
    return next((depth for depth, one in enumerate([folder, *folder.parents]) if one.exists()), 0)


def copy_to_user(source: Path, target: Path) -> None:
    """Copy a folder with files in it (no folders) to a place of the user's, by the user's umask. Raises `OSError`.

    Files of the same names are replaced, each in one step; links are replaced, not followed.
    """
    make_users_folder(target)
    for file in source.iterdir():
        temporary = target / f".tmp-{uuid4().hex}"
        try:
            shutil.copyfile(file, temporary)
            temporary.chmod(users_mode(0o666))
            temporary.replace(target / file.name)
        finally:
            temporary.unlink(missing_ok=True)


def is_open(path: Path) -> bool:
    """Whether others may read, write or enter it; False if there is nothing."""
    with suppress(OSError):
        return bool(stat.S_IMODE(path.lstat().st_mode) & _OTHERS)
    return False


def close(folder: Path, inside: tuple[str, ...] = ()) -> bool:
    """Shut others out of a folder of this user's; whether they are out. Harmless if there is none.

    A folder for all, such as /tmp, the user's home and what belongs to somebody else stay as they are. What is called
    one of `inside` there is closed instead.
    """
    if not is_open(folder):
        return True
    if _is_ours_alone(folder) and _shut(folder):
        return True
    for name in inside:
        path = folder / name
        if is_open(path) and not path.is_symlink() and path.lstat().st_uid == os.geteuid():
            _shut(path)
    return False


def _is_ours_alone(folder: Path) -> bool:
    found = folder.lstat()
    for_all = found.st_mode & stat.S_ISVTX or folder in {Path("/"), Path.home()}
    return not for_all and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _shut(path: Path) -> bool:
    try:
        path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~_OTHERS)
    except OSError:  # another user's, or a file system that knows no modes
        return False
    return not is_open(path)

"""Files that users name or keep in folders: only ordinary ones are opened, links do not lead out of a folder, and what
is written is there whole or not at all."""

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from pipeline.engine import privacy
from pipeline.engine.errors import UserError


class NotOrdinary(OSError):
    """It is a folder, a pipe, a socket or a device: reading it might never end."""

    def __init__(self, path: Path) -> None:
        super().__init__(None, "it is not an ordinary file", str(path))


def open_file(path: Path, *, follow: bool = True) -> BinaryIO:
    """The ordinary file at `path`, for reading; its size and time are those of what was opened, whatever comes after.

    Never waits: opening a named pipe would, until somebody writes. Raises `NotOrdinary`, or another `OSError`; unless
    `follow`, also for a link.
    """

    def opener(name: str, flags: int) -> int:
        # Looked at before, since to open a device may do something; and after, since it may have been replaced.
        _check(path, path.stat(follow_symlinks=follow), links=not follow)
        descriptor = os.open(name, flags | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
        try:
            _check(path, os.fstat(descriptor))
        except NotOrdinary:
            os.close(descriptor)
            raise
        return descriptor

    try:
        return cast("BinaryIO", open(path, "rb", opener=opener))
    except ValueError as error:  # a NUL in its name, or half a character
        raise OSError(errno.EINVAL, "no file has such a name", str(path)) from error


def _check(path: Path, found: os.stat_result, *, links: bool = False) -> None:
    """`links`: they pass, for `O_NOFOLLOW` to refuse them in the system's words."""
    if not stat.S_ISREG(found.st_mode) and not (links and stat.S_ISLNK(found.st_mode)):
        raise NotOrdinary(path)


def is_file_below(path: Path, root: Path) -> bool:
    """Whether `path` is an ordinary file below `root`, a resolved folder, and no link on its way leads out of that."""
    try:
        return path.is_file() and path.resolve().is_relative_to(root)
    except (OSError, RuntimeError, ValueError):  # links in a circle; a NUL in its name
        return False


def walk(
    folder: Path, failed: Callable[[OSError], object] = lambda _: None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """As `Path.walk`: each folder with the names of the folders and files in it, of which the former may be taken out.

    `os.walk` breaks off in a thousand folders inside one another before Python 3.12. `failed` is told of folders that
    cannot be listed; linked ones are not entered.
    """
    waiting = [folder]
    while waiting:
        parent = waiting.pop()
        try:
            with os.scandir(parent) as found:
                entries = [(entry.name, _is_folder(entry)) for entry in found]
        except OSError as error:
            failed(error)
            continue
        folders = [name for name, is_folder in entries if is_folder]
        yield parent, folders, [name for name, is_folder in entries if not is_folder]
        waiting += [path for name in reversed(folders) if not (path := parent / name).is_symlink()]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def storage_error(error: OSError, path: Path) -> UserError:
    """Translate a file system error into one that tells the user what to do."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return UserError(f"no space left on the disk while writing {path}: free some and try again", code="disk_full")
    if isinstance(error, PermissionError):
        return UserError(f"no permission: {error.filename or path}", code="permission")
    return UserError(f"{path}: {error.strerror or error}", code="io_error")


@contextmanager
def staged_text(path: Path, text: str, mode: int = privacy.PRIVATE_FILE) -> Iterator[Callable[[], None]]:
    """Write `text` beside `path` and yield a function that moves it into place; remove it if that is never called.

    Call it inside a database transaction, and only the winner of that transaction replaces `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=privacy.PRIVATE_FOLDER)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    temporary = Path(name)

    def place() -> None:
        with suppress(FileNotFoundError):  # the transaction was retried, and its first try placed the file
            temporary.replace(path)

    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        yield place
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole file in one step, or nothing."""
    with staged_text(path, text) as place:
        place()

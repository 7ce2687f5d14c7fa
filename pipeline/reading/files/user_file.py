"""Open, find and write users' files safely: open only ordinary files, follow no link out of a folder, and write a file
whole or not at all."""

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

_PASSING = {
    *(errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EDEADLK, errno.ENOLCK, errno.ETXTBSY),
    *(errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE, errno.ETIMEDOUT),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNRESET, errno.ECONNABORTED),
}
_LOCKED = {32, 33}
"""Errors of Windows: another program has opened the file, or locked a part of it."""


def passes(error: BaseException) -> bool:
    """Whether a later reading may succeed: a locked file, a drive of the network that is away, a disk in trouble."""
    return isinstance(error, OSError) and (error.errno in _PASSING or getattr(error, "winerror", None) in _LOCKED)


class NotOrdinary(OSError):
    """The path is a folder, a pipe, a socket or a device, whose reading might never end."""

    def __init__(self, path: Path) -> None:
        super().__init__(None, "it is not an ordinary file", str(path))


def open_file(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open the ordinary file at `path` for reading; `fstat` gives its size and time even if the path is replaced.

    Never waits, though opening a named pipe normally waits for a writer. Raises `NotOrdinary` or another `OSError`;
    also for a link, unless `follow`.
    """

    def opener(name: str, flags: int) -> int:
        # Check before, since opening a device may have effects; check after, since the path may have been replaced.
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


def _check(path: Path, status: os.stat_result, *, links: bool = False) -> None:
    """Raise `NotOrdinary` unless the file is ordinary. `links`: let links pass; `O_NOFOLLOW` then refuses them."""
    if not stat.S_ISREG(status.st_mode) and not (links and stat.S_ISLNK(status.st_mode)):
        raise NotOrdinary(path)


def is_file_below(path: Path, root: Path) -> bool:
    """Whether `path` is an ordinary file below the resolved folder `root`, and no link on the way leads out of it."""
    try:
        return path.is_file() and path.resolve().is_relative_to(root)
    except (OSError, RuntimeError, ValueError):  # links in a circle; a NUL in its name
        return False


def walk(
    folder: Path, failed: Callable[[OSError], object] = lambda _: None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Like `Path.walk`, yield each folder with the names of its folders and files; remove a folder's name to skip it.

    Before Python 3.12, `os.walk` fails a thousand folders deep. Call `failed` for folders that cannot be listed; do not
    enter linked folders.
    """
    waiting = [folder]
    while waiting:
        parent = waiting.pop()
        try:
            with os.scandir(parent) as scan:
                entries = [(entry.name, _is_folder(entry)) for entry in scan]
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
    """Return (do not raise) a `UserError` that tells the user how to solve a file system error. Its code is
    `disk_full`, `permission` or `io_error`."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return UserError(f"no space left on the disk while writing {path}: free some and try again", code="disk_full")
    if isinstance(error, PermissionError):
        return UserError(f"no permission: {error.filename or path}", code="permission")
    return UserError(f"{path}: {error.strerror or error}", code="io_error")


@contextmanager
def staged(path: Path, content: str | bytes, mode: int = privacy.PRIVATE_FILE) -> Iterator[Callable[[], None]]:
    """Write `content` to a temporary file beside `path`, and yield a function that moves it to `path`; remove it if
    that is never called.

    Call the function inside a database transaction, so that only the transaction's winner replaces `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=privacy.PRIVATE_FOLDER)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    temporary = Path(name)

    def place() -> None:
        with suppress(FileNotFoundError):  # the transaction was retried, and its first try placed the file
            temporary.replace(path)

    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        yield place
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, replacing its file in one step; after an error the old file is unchanged."""
    with staged(path, text) as place:
        place()

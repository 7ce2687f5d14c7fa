"""File locks, which the kernel releases when a process dies: one for a data folder's supervisor, one for its users."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pipeline.settings import Settings


class FileLock:
    """A lock on a file, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        # Child processes must not inherit it: they would keep the lock after our end.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self, *, shared: bool = False, wait: bool = False) -> bool:
        """Take the lock, exclusively unless `shared`; False if others hold it and `wait` is off."""
        mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        try:
            fcntl.flock(self._descriptor, mode)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def is_in_place(self) -> bool:
        """Whether this file is still at its path: it may have been deleted, alone or with its folder."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def supervisor_lock(settings: Settings) -> FileLock:
    """Return the lock that the one supervisor of a data folder holds. The caller acquires it."""
    return FileLock(settings.data_dir / "supervisor.lock")


def users_lock(settings: Settings) -> FileLock:
    """Return the lock that each command holds shared while it uses the stack, and a supervisor that ends exclusively.
    The caller acquires it."""
    return FileLock(settings.data_dir / "users.lock")


def is_supervised(settings: Settings) -> bool:
    """Whether a supervisor runs for this data folder. False without access to it."""
    with suppress(OSError), supervisor_lock(settings) as lock:
        return not lock.acquire(shared=True)
    return False

"""Sockets in a folder with a guessable name: each connection first checks the folder's owner.

Another user who created the folder first would receive our messages, and could send their own.
"""

import os
import stat
from pathlib import Path
from typing import Any

from redis import RedisError
from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixDomainSocketConnection
from redis.connection import UnixDomainSocketConnection

ADVICE = "remove it, or set TMPDIR to a folder of your own, or PENSTOCK_DATA_DIR to a shorter path"


class ForeignSocket(RedisError):
    """The socket's folder belongs to another user, or others may enter it. Clients do not retry this."""


def check(socket: str) -> None:
    """Raise `ForeignSocket` unless the socket's folder is private to this user; `OSError` if the folder does not
    exist."""
    folder = Path(socket).parent
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ForeignSocket(f"{folder} belongs to someone else or is open to others: {ADVICE}")


class OwnFolder:
    """Mixin of a connection to a unix socket: checks the folder first."""

    path: str

    def _connect(self) -> Any:
        check(self.path)
        return super()._connect()  # type: ignore[misc]


class PrivateSocket(OwnFolder, UnixDomainSocketConnection):
    """A connection to a socket in a private folder."""


class AsyncPrivateSocket(OwnFolder, AsyncUnixDomainSocketConnection):
    """The same for asyncio: callers await the result of `_connect`."""

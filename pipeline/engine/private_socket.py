"""Sockets in a folder whose name anybody can guess: whose folder it is, looked at before each connection.

Another user who made it first would be sent our messages, and could send us theirs.
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
    """The socket's folder is another user's, or others may enter it. Not tried again, unlike a lost connection."""


def check(socket: str) -> None:
    """Raise `ForeignSocket` unless the folder of this socket is this user's alone; `OSError` if there is none."""
    folder = Path(socket).parent
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ForeignSocket(f"{folder} belongs to someone else or is open to others: {ADVICE}")


class OwnFolder:
    """Goes before a connection to a unix socket."""

    path: str

    def _connect(self) -> Any:
        check(self.path)
        return super()._connect()  # type: ignore[misc]


class PrivateSocket(OwnFolder, UnixDomainSocketConnection):
    """A connection to a socket in a folder that is ours alone."""


class AsyncPrivateSocket(OwnFolder, AsyncUnixDomainSocketConnection):
    """The same for asyncio: what `_connect` returns is awaited."""

"""A minimal client of Redis' protocol over a unix socket, for speed: half of a seed's time goes to Redis."""

import socket
from collections.abc import Sequence
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError


class Wire:
    """One connection."""

    def __init__(self, path: str, *, decodes: bool = True) -> None:
        """`decodes`: strings are text, else bytes."""
        self._decodes = decodes
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rb")
        self._later: list[Sequence[Any]] = []

    def call(self, *parts: Any) -> Any:
        """Send a command; its answer, as redis-py gets it before any callback. Raises `ResponseError`."""
        (answer,) = self.calls([parts])
        if isinstance(answer, ResponseError):
            raise answer
        return answer

    def later(self, *parts: Any) -> None:
        """Send a command ahead of the next one, in the same packet, and drop its answer."""
        self._later.append(parts)

    def calls(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands together; their answers, of which some may be a `ResponseError`."""
        late = len(self._later)
        packed = []
        for parts in (*self._later, *commands):
            packed.append(b"*%d\r\n" % len(parts))
            for part in parts:
                each = part if isinstance(part, bytes) else str(part).encode()
                packed.append(b"$%d\r\n%b\r\n" % (len(each), each))
        self._later.clear()
        self._socket.sendall(b"".join(packed))
        answers = [self._read() for _ in range(late + len(commands))]
        for answer in answers[:late]:
            if isinstance(answer, ResponseError):
                raise answer
        return answers[late:]

    def _read(self) -> Any:
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b":":
            return int(rest)
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self._text(self._file.read(size + 2)[:-2])
        if kind == b"*":
            return None if rest == b"-1" else [self._read() for _ in range(int(rest))]
        if kind == b"-":
            return (OutOfMemoryError if rest.startswith(b"OOM ") else ResponseError)(rest.decode())
        return self._text(rest)

    def _text(self, data: bytes) -> Any:
        return data.decode() if self._decodes else data

    def close(self) -> None:
        self._file.close()
        self._socket.close()

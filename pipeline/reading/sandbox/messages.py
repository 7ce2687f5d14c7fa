"""Messages between a process and the child that reads for it: four bytes of length, then JSON."""

import json
import struct
from typing import Any

_LENGTH = struct.Struct(">I")


def pack(message: dict[str, Any], errors: str = "replace") -> bytes:
    """Return a message as bytes: its length, then JSON. `errors` handles lone surrogates: `surrogatepass` keeps them,
    and so the names of any files."""
    body = json.dumps(message, ensure_ascii=False).encode("utf-8", errors)
    return _LENGTH.pack(len(body)) + body


class Buffer:
    """Collects bytes as they arrive and returns complete messages."""

    def __init__(self, max_bytes: int) -> None:
        self._bytes = bytearray()
        self._max_bytes = max_bytes

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def next(self) -> dict[str, Any] | None:
        """Return the next message; None while it is incomplete. Raises `ValueError` if it is longer than `max_bytes`,
        or not a JSON object."""
        if len(self._bytes) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes)
        if length > self._max_bytes:
            raise ValueError(f"a message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._bytes) < end:
            return None
        message = json.loads(self._bytes[_LENGTH.size : end])
        del self._bytes[:end]
        if not isinstance(message, dict):
            raise ValueError("a message that is not an object")  # noqa: TRY004  # as documented
        return message

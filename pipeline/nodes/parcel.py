"""Payloads and results of jobs, packed into one byte string: a JSON object with its binary parts."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Parcel:
    """A JSON object with its binary parts."""

    head: Mapping[str, Any]
    parts: Sequence[bytes] = field(default=())

    def pack(self) -> bytes:
        """Encode the parcel as one byte string."""
        head = json.dumps({"head": self.head, "sizes": [len(part) for part in self.parts]}).encode()
        return b"".join((struct.pack(">I", len(head)), head, *self.parts))

    @classmethod
    def unpack(cls, data: bytes) -> "Parcel":
        """Decode a packed parcel. Raises `ValueError` for malformed or truncated bytes; does not check the kinds of the
        values in its header."""
        try:
            (length,) = struct.unpack_from(">I", data)
            facts = json.loads(data[4 : 4 + length])
            head, sizes = facts["head"], facts["sizes"]
        except (struct.error, KeyError, TypeError) as error:
            raise ValueError("not a parcel") from error
        parts, offset = [], 4 + length
        for size in sizes:
            parts.append(data[offset : offset + size])
            offset += size
        if offset != len(data):
            raise ValueError("not a parcel")
        return cls(head, parts)

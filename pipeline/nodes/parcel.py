"""What nodes are given and what they give, as one string of bytes: a JSON object with its binary parts."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Parcel:
    """A JSON object with its binary parts, as it is kept in Redis or handed from part to part."""

    head: Mapping[str, Any]
    parts: Sequence[bytes] = field(default=())

    def pack(self) -> bytes:
        """One string of bytes."""
        head = json.dumps({"head": self.head, "sizes": [len(part) for part in self.parts]}).encode()
        return b"".join((struct.pack(">I", len(head)), head, *self.parts))

    @classmethod
    def unpack(cls, data: bytes) -> "Parcel":
        """What was packed. Raises `ValueError` for anything else."""
        try:
            (length,) = struct.unpack_from(">I", data)
            facts = json.loads(data[4 : 4 + length])
            head, sizes = facts["head"], facts["sizes"]
        except (struct.error, KeyError, TypeError) as error:
            raise ValueError("not a parcel") from error
        parts, begin = [], 4 + length
        for size in sizes:
            parts.append(data[begin : begin + size])
            begin += size
        if begin != len(data):
            raise ValueError("not a parcel")
        return cls(head, parts)

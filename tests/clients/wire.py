"""One end of a WebSocket that speaks docs/reference/node-protocol.md: messages with the frames that follow them."""

import json
import threading
import time
from dataclasses import dataclass
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.connection import Connection

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Message:
    """What came, with its binary frames."""

    fields: dict[str, Any]
    files: tuple[bytes, ...]

    @property
    def type(self) -> str:
        return str(self.fields["type"])

    @property
    def job(self) -> tuple[str, int]:
        """The job and attempt that it is about."""
        return self.fields["job_id"], self.fields["attempt"]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


File = tuple[dict[str, Any], bytes]
"""An attachment: what the message says of it, and its frame."""


def file(data: bytes, media_type: str = "image/png", name: str = "") -> File:
    """An attachment of these bytes."""
    return {"name": name, "media_type": media_type, "size": len(data)}, data


class Peer:
    """Sends and awaits messages. `unheeded`: types that are passed over while another is awaited."""

    def __init__(self, connection: Connection, unheeded: frozenset[str] = frozenset()) -> None:
        self.connection = connection
        self.unheeded = unheeded
        self._sending = threading.Lock()

    def say(self, kind: str, *files: File, **fields: Any) -> None:
        """Send a message, and its frames."""
        message = {"v": 1, "type": kind, **fields}
        if files:
            message["attachments"] = [facts for facts, _ in files]
        with self._sending:
            self.connection.send(json.dumps(message))
            for _, data in files:
                self.connection.send(data)

    def next(self, deadline_s: float = DEADLINE_S) -> Message:
        """The next message that is heeded. Raises `TimeoutError` and `ConnectionClosed`."""
        until = time.monotonic() + deadline_s
        while True:
            text = self.connection.recv(max(until - time.monotonic(), 0.01))
            assert isinstance(text, str), "a binary frame that no message announced"
            fields = json.loads(text)
            files = []
            for facts in fields.get("attachments") or []:
                data = self.connection.recv(max(until - time.monotonic(), 0.01))
                assert isinstance(data, bytes), "something came between a message and its frames"
                assert len(data) == facts["size"]
                files.append(data)
            if fields["type"] not in self.unheeded:
                return Message(fields, tuple(files))

    def expect(self, kind: str) -> Message:
        """The next message, which has to be of this type."""
        message = self.next()
        assert message.type == kind, message.fields
        return message

    def until(self, kind: str) -> list[Message]:
        """All messages up to the first of this type."""
        found = [self.next()]
        while found[-1].type != kind:
            found.append(self.next())
        return found

    def close_code(self) -> int:
        """With which code the other side closes, whatever it says before."""
        try:
            while True:
                self.next()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006

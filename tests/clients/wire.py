"""An end of a WebSocket for docs/reference/node-protocol.md: messages with the frames that follow them."""

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
    """A received message with its binary frames."""

    fields: dict[str, Any]
    files: tuple[bytes, ...]

    @property
    def type(self) -> str:
        return str(self.fields["type"])

    @property
    def job(self) -> tuple[str, int]:
        """The message's job and attempt."""
        return self.fields["job_id"], self.fields["attempt"]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


File = tuple[dict[str, Any], bytes]
"""An attachment: its description in the message, and its frame."""


def file(data: bytes, media_type: str = "image/png", name: str = "") -> File:
    """Return an attachment of these bytes."""
    return {"name": name, "media_type": media_type, "size": len(data)}, data


class Peer:
    """Sends and receives messages. `unheeded`: types to skip while waiting for another type."""

    def __init__(self, connection: Connection, unheeded: frozenset[str] = frozenset()) -> None:
        self.connection = connection
        self.unheeded = unheeded
        self._sending = threading.Lock()

    def say(self, kind: str, *files: File, **fields: Any) -> None:
        """Send a message and its frames."""
        message = {"v": 1, "type": kind, **fields}
        if files:
            message["attachments"] = [facts for facts, _ in files]
        with self._sending:
            self.connection.send(json.dumps(message))
            for _, data in files:
                self.connection.send(data)

    def next(self, deadline_s: float = DEADLINE_S) -> Message:
        """Return the next message that is not skipped. Raises `TimeoutError` and `ConnectionClosed`."""
        until = time.monotonic() + deadline_s
        while True:
            text = self.connection.recv(max(until - time.monotonic(), 0.01))
            assert isinstance(text, str), "a binary frame without an announcement"
            fields = json.loads(text)
            files = []
            for facts in fields.get("attachments") or []:
                data = self.connection.recv(max(until - time.monotonic(), 0.01))
                assert isinstance(data, bytes), "a message interrupts another message's frames"
                assert len(data) == facts["size"]
                files.append(data)
            if fields["type"] not in self.unheeded:
                return Message(fields, tuple(files))

    def expect(self, kind: str) -> Message:
        """Return the next message, which must have this type."""
        message = self.next()
        assert message.type == kind, message.fields
        return message

    def until(self, kind: str) -> list[Message]:
        """Return all messages up to the first of this type."""
        messages = [self.next()]
        while messages[-1].type != kind:
            messages.append(self.next())
        return messages

    def close_code(self) -> int:
        """Return the code with which the other side closes, and skip messages before it."""
        try:
            while True:
                self.next()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006

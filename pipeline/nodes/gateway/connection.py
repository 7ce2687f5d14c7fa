"""The WebSocket of a node or a session: reads messages with their attachments, and writes from a bounded outbox."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import TypeAdapter
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from pipeline.nodes.protocol import BadMessage, CloseCode, Error, Message, WithAttachments, encode, parse
from pipeline.nodes.settings import GatewaySettings

AnyMessage = TypeVar("AnyMessage")
WIRE = "penstock.wire"
"""The key of the connection's `Wire` in the ASGI scope."""
_FLUSH_S = 5.0
"""How long a closed connection may take to send the rest of its outbox."""


class Ended(Exception):
    """The client has disconnected, or the gateway has closed the connection."""


@dataclass(frozen=True)
class Wire:
    """The server's access to a connection, beyond ASGI."""

    abort: Callable[[], None]
    """Close the connection at once. An orderly close waits for the client to read."""
    silent_s: Callable[[], float]
    """The time since the last byte arrived."""


class Connection:
    """One connection. The serving task reads it; a task of its own writes, so that slow readers block no sender."""

    def __init__(self, socket: WebSocket, settings: GatewaySettings) -> None:
        self._socket = socket
        self._settings = settings
        self._wire: Wire | None = socket.scope.get(WIRE)
        self._outbox: deque[tuple[str, Sequence[bytes], int]] = deque()
        self._waiting_bytes = 0
        self.received_bytes = 0
        """The size of the last message with its attachments."""
        self._filled = asyncio.Event()
        self._closing: tuple[CloseCode, str] | None = None
        self._writer = asyncio.create_task(self._write())
        self._flush_timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """Whether a message sent now may arrive."""
        return self._closing is None and not self._writer.done()

    def send(self, message: Message, parts: Sequence[bytes] = (), *, dispensable: bool = False) -> bool:
        """Put a message into the outbox; a task sends it. False: the message was dropped, or the connection is closing.

        Drops a `dispensable` message that would fill more than half of the outbox. Closes the connection if the outbox
        has no room for any other message: the client reconnects and repeats its requests.
        """
        if not self.open:
            return False
        text = encode(message)
        size = len(text) + sum(map(len, parts))
        room = self._settings.max_outbox_bytes // (2 if dispensable else 1)
        if self._outbox and self._waiting_bytes + size > room:
            if not dispensable:
                self.close(CloseCode.SLOW, "the client reads too slowly")
            return False
        self._outbox.append((text, parts, size))
        self._waiting_bytes += size
        self._filled.set()
        return True

    def close(self, code: CloseCode, reason: str) -> None:
        """Start to close the connection: once the outbox is sent, but at most 5 s later, or at once for `SLOW`.
        Harmless if it is closing already."""
        if self._closing is None:
            self._closing = (code, reason)
            self._filled.set()
            patience_s = 0 if code is CloseCode.SLOW else _FLUSH_S
            self._flush_timer = asyncio.get_running_loop().call_later(patience_s, self._abort)

    def _abort(self) -> None:
        self._writer.cancel()
        if self._wire:
            self._wire.abort()

    async def wait_closed(self) -> None:
        """Close the connection, and wait until the writer has ended."""
        self.close(CloseCode.GOING_AWAY, "the connection has ended")
        await asyncio.wait({self._writer})

    async def receive(
        self, kind: TypeAdapter[AnyMessage], within_s: float | None = None
    ) -> tuple[AnyMessage, list[bytes]]:
        """Return the next message of a known type with its attachments.

        Raises `BadMessage`, `Ended`, and `TimeoutError` if no byte arrives within `within_s`.
        """
        while True:
            frame = await self._frame(within_s)
            if not isinstance(frame, str):
                raise BadMessage("a binary frame without a message that announces it")
            if len(frame) > self._settings.max_message_bytes:
                raise BadMessage(f"a text frame of over {self._settings.max_message_bytes} bytes", CloseCode.TOO_LARGE)
            message = parse(frame, kind)
            if message is None:
                await self._skip_attachments(frame, within_s)
                continue
            parts = [] if not isinstance(message, WithAttachments) else await self._attachments(message, within_s)
            self.received_bytes = len(frame) + sum(map(len, parts))
            return message, parts

    async def _skip_attachments(self, frame: str, within_s: float | None) -> None:
        """Read and drop the binary frames of an unknown message."""
        announced = json.loads(frame).get("attachments")
        for _ in announced if isinstance(announced, list) else ():
            if isinstance(await self._frame(within_s), str):
                raise BadMessage("a text frame instead of an announced attachment")

    async def _attachments(self, message: WithAttachments, within_s: float | None) -> list[bytes]:
        if sum(announced.size for announced in message.attachments) > self._settings.max_attachment_bytes:
            limit = self._settings.max_attachment_bytes
            raise BadMessage(f"attachments of over {limit} bytes", CloseCode.TOO_LARGE)
        parts = []
        for announced in message.attachments:
            part = await self._frame(within_s)
            if isinstance(part, str) or len(part) != announced.size:
                raise BadMessage("an attachment differs from its announcement")
            parts.append(part)
        return parts

    async def _frame(self, within_s: float | None) -> str | bytes:
        if self._socket.client_state is not WebSocketState.CONNECTED:
            raise Ended
        receiving = asyncio.ensure_future(self._socket.receive())
        try:
            # Wait on while bytes arrive: a large frame on a slow line holds up all later frames.
            while not (await asyncio.wait({receiving}, timeout=within_s))[0]:
                if self._wire is None or self._wire.silent_s() >= (within_s or 0):
                    raise TimeoutError
        finally:
            receiving.cancel()
        frame = receiving.result()
        if frame["type"] != "websocket.receive" or self._closing is not None:
            raise Ended  # ignore messages that arrive while a closed connection still sends its outbox
        text = frame.get("text")
        return text if text is not None else frame.get("bytes") or b""

    async def _write(self) -> None:
        try:
            while not self._closing or self._outbox:
                while self._outbox:
                    text, parts, size = self._outbox.popleft()
                    await self._socket.send_text(text)
                    for part in parts:
                        await self._socket.send_bytes(part)
                    self._waiting_bytes -= size
                if self._closing:
                    break
                self._filled.clear()
                await self._filled.wait()
            await self._end(*self._closing)
        except (WebSocketDisconnect, RuntimeError, OSError):
            return  # the client has disconnected; the serving task notices when it reads
        finally:
            self._outbox.clear()
            if self._flush_timer:
                self._flush_timer.cancel()

    async def _end(self, code: CloseCode, reason: str) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            if code >= CloseCode.BAD_MESSAGE:
                await self._socket.send_text(encode(Error(code=code.name.lower(), message=reason)))
            await self._socket.close(code, reason.encode()[:120].decode(errors="ignore"))

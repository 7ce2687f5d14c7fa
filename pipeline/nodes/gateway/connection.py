"""One WebSocket of a node or a session: messages with their attachments in, a bounded outbox out."""

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
"""Where an ASGI scope has the connection's `Wire`."""
_LAST_WORDS_S = 5.0
"""How long what is already in the outbox may take when a connection is closed."""


class Ended(Exception):
    """The other side has gone, or was sent away."""


@dataclass(frozen=True)
class Wire:
    """What a server knows of a connection beyond ASGI."""

    abort: Callable[[], None]
    """End it at once: an orderly end would wait for one that does not read."""
    silent_s: Callable[[], float]
    """How long nothing at all has come, not even a part of a frame."""


class Connection:
    """Read by whoever serves it; written by a task of its own, so that nobody waits for one that reads slowly."""

    def __init__(self, socket: WebSocket, settings: GatewaySettings) -> None:
        self._socket = socket
        self._settings = settings
        self._wire: Wire | None = socket.scope.get(WIRE)
        self._outbox: deque[tuple[str, Sequence[bytes], int]] = deque()
        self._waiting_bytes = 0
        self.received_bytes = 0
        """How large the last message was, with its attachments."""
        self._filled = asyncio.Event()
        self._closing: tuple[CloseCode, str] | None = None
        self._writer = asyncio.create_task(self._write())
        self._last_words: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """Whether something that is sent now may arrive."""
        return self._closing is None and not self._writer.done()

    def send(self, message: Message, parts: Sequence[bytes] = (), *, dispensable: bool = False) -> bool:
        """Put a message into the outbox; whether it may arrive.

        A `dispensable` one is left out while the outbox is half full. Anything else that finds no room ends the
        connection: who does not read is not waited for, and asks again when connected anew.
        """
        if not self.open:
            return False
        text = encode(message)
        size = len(text) + sum(map(len, parts))
        room = self._settings.max_outbox_bytes // (2 if dispensable else 1)
        if self._outbox and self._waiting_bytes + size > room:
            if not dispensable:
                self.close(CloseCode.SLOW, "it does not read what it is sent")
            return False
        self._outbox.append((text, parts, size))
        self._waiting_bytes += size
        self._filled.set()
        return True

    def close(self, code: CloseCode, reason: str) -> None:
        """End the connection after what is in the outbox. Harmless if it has ended."""
        if self._closing is None:
            self._closing = (code, reason)
            self._filled.set()
            patience_s = 0 if code is CloseCode.SLOW else _LAST_WORDS_S
            self._last_words = asyncio.get_running_loop().call_later(patience_s, self._abort)

    def _abort(self) -> None:
        """End a connection whose other side does not take its last words."""
        self._writer.cancel()
        if self._wire:
            self._wire.abort()

    async def ended(self) -> None:
        """Return when nothing is written any more."""
        self.close(CloseCode.GOING_AWAY, "the connection has ended")
        await asyncio.wait({self._writer})

    async def receive(
        self, kind: TypeAdapter[AnyMessage], within_s: float | None = None
    ) -> tuple[AnyMessage, list[bytes]]:
        """The next message that is known here, with its attachments.

        Raises `BadMessage`, `Ended`, and `TimeoutError` if nothing at all comes within `within_s`.
        """
        while True:
            frame = await self._frame(within_s)
            if not isinstance(frame, str):
                raise BadMessage("a binary frame that no message announced")
            if len(frame) > self._settings.max_message_bytes:
                raise BadMessage(f"a text frame of over {self._settings.max_message_bytes} bytes", CloseCode.TOO_LARGE)
            message = parse(frame, kind)
            if message is None:
                await self._pass_over(frame, within_s)
                continue
            parts = [] if not isinstance(message, WithAttachments) else await self._attachments(message, within_s)
            self.received_bytes = len(frame) + sum(map(len, parts))
            return message, parts

    async def _pass_over(self, frame: str, within_s: float | None) -> None:
        """The binary frames of a message that is not known here."""
        announced = json.loads(frame).get("attachments")
        for _ in announced if isinstance(announced, list) else ():
            if isinstance(await self._frame(within_s), str):
                raise BadMessage("an attachment is not what was announced")

    async def _attachments(self, message: WithAttachments, within_s: float | None) -> list[bytes]:
        if sum(one.size for one in message.attachments) > self._settings.max_attachment_bytes:
            limit = self._settings.max_attachment_bytes
            raise BadMessage(f"attachments of over {limit} bytes", CloseCode.TOO_LARGE)
        parts = []
        for announced in message.attachments:
            part = await self._frame(within_s)
            if isinstance(part, str) or len(part) != announced.size:
                raise BadMessage("an attachment is not what was announced")
            parts.append(part)
        return parts

    async def _frame(self, within_s: float | None) -> str | bytes:
        if self._socket.client_state is not WebSocketState.CONNECTED:
            raise Ended
        asked = asyncio.ensure_future(self._socket.receive())
        try:
            # A large frame takes its time on a slow line, and nothing else can come meanwhile.
            while not (await asyncio.wait({asked}, timeout=within_s))[0]:
                if self._wire is None or self._wire.silent_s() >= (within_s or 0):
                    raise TimeoutError
        finally:
            asked.cancel()
        frame = asked.result()
        if frame["type"] != "websocket.receive" or self._closing is not None:
            raise Ended  # who was sent away has no say any more, even while the last words wait to be read
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
            return  # the other side has gone: whoever serves it sees so when it reads
        finally:
            self._outbox.clear()
            if self._last_words:
                self._last_words.cancel()

    async def _end(self, code: CloseCode, reason: str) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            if code >= CloseCode.BAD_MESSAGE:
                await self._socket.send_text(encode(Error(code=code.name.lower(), message=reason)))
            await self._socket.close(code, reason.encode()[:120].decode(errors="ignore"))

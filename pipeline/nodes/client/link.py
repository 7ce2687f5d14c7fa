"""A WebSocket to a gateway: messages of the protocol with their attachments, and what went wrong, as nodes and sessions
need it."""

import asyncio
import json
import logging
import random
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException

from pipeline.nodes.protocol import (
    MAX_ATTACHMENTS,
    BadMessage,
    CloseCode,
    Error,
    Message,
    WithAttachments,
    parse,
)
from pipeline.settings.providers import gateway_urls

Incoming = TypeVar("Incoming")
_CLOSE_S = 2
_FRAMES_AHEAD = 4
"""Read before they are asked for: each may be as large as a picture."""
_QUIET = logging.getLogger(f"{__name__}.frames")
_QUIET.setLevel(logging.WARNING)
"""For the library, which at DEBUG logs the token and the contents of frames."""


@dataclass(frozen=True)
class LinkLimits:
    """How long a gateway may take, and how much it may send at once."""

    open_s: float = 10
    """From the name's look-up to the end of the handshake."""
    ping_s: float = 5
    """Between two pings."""
    silent_s: float = 15
    """A ping not answered for so long ends the connection."""
    send_s: float = 60
    """For one frame: a gateway that does not read is left."""
    parts_s: float = 60
    """For all attachments of a message, from its end on; and for a message, from its first fragment on."""
    max_message_bytes: int = 16 * 2**20
    """Of a text frame."""
    max_attachment_bytes: int = 32 * 2**20
    """Of a message's binary frames together."""


class LinkFailed(Exception):
    """There is no connection, or none any more; `str` says why. `close_code`: what the gateway said, 0 if nothing.

    `fatal`: trying again is no use before somebody changes something."""

    def __init__(self, reason: str, close_code: int = 0) -> None:
        super().__init__(reason)
        self.close_code = close_code
        self.fatal = close_code in {CloseCode.UNAUTHORIZED, CloseCode.VERSION}


class Oversize(BadMessage):
    """`message` announces more attachments than are taken; they were not read."""

    def __init__(self, message: object) -> None:
        super().__init__("the attachments are too large", CloseCode.TOO_LARGE)
        self.message = message


class Link(Generic[Incoming]):
    """One open connection. Every method raises `LinkFailed` once it is lost."""

    def __init__(self, socket: ClientConnection, kind: TypeAdapter[Incoming], limits: LinkLimits) -> None:
        self._socket = socket
        self._kind = kind
        self._limits = limits
        self._sending = asyncio.Lock()
        self._said = ""

    async def send(self, message: Message | bytes, parts: Sequence[bytes] = ()) -> None:
        """Hand a message (or one already encoded) and its attachments to the network.

        Cancelled half-way, the connection is cut: no other message may stand between."""
        head = message if isinstance(message, bytes) else message.model_dump_json(exclude_none=True).encode()
        async with self._sending:
            whole = False
            try:
                await self._frame(head, text=True)
                for part in parts:
                    await self._frame(part, text=False)
                whole = True
            finally:
                if not whole:
                    self._socket.transport.abort()

    async def _frame(self, data: bytes, *, text: bool) -> None:
        try:
            async with asyncio.timeout(self._limits.send_s):
                await self._socket.send(data, text=text)
        except TimeoutError:
            raise LinkFailed("the gateway does not read what it is sent") from None
        except WebSocketException as error:
            raise failure(error) from None

    async def receive(self) -> tuple[Incoming, tuple[bytes, ...]]:
        """The next message of a known type, and its attachments. Raises `BadMessage` for junk.

        An `error` of the gateway becomes the reason of the `LinkFailed` that follows it."""
        while True:
            text = await self._next()
            if not isinstance(text, str):
                raise BadMessage("a binary frame that no message announced")
            message = parse(text, self._kind)
            if message is None:
                announced = json.loads(text).get("attachments")
                await self._parts([None] * len(announced) if isinstance(announced, list) else [])
            elif isinstance(message, Error):
                self._said = f"{message.code}: {message.message}"[:300]
            else:
                sizes = [each.size for each in message.attachments] if isinstance(message, WithAttachments) else []
                if sum(sizes) > self._limits.max_attachment_bytes:
                    raise Oversize(message)
                return message, await self._parts(sizes)

    async def _parts(self, sizes: Sequence[int | None]) -> tuple[bytes, ...]:
        """The attachments of a message; those without a size are read and dropped."""
        if len(sizes) > MAX_ATTACHMENTS:
            raise BadMessage("there are too many attachments")
        parts = []
        try:
            async with asyncio.timeout(self._limits.parts_s):
                for size in sizes:
                    part = await self._next()
                    if not isinstance(part, bytes) or len(part) != (len(part) if size is None else size):
                        raise BadMessage("an attachment is missing, or has another size than announced")
                    parts.append(part if size is not None else b"")
        except TimeoutError:
            raise LinkFailed("the gateway keeps attachments back that it announced") from None
        return tuple(parts)

    async def _next(self) -> str | bytes:
        """The next whole message, which may come in many fragments: these within `parts_s` from the first on."""
        frames: list[Any] = []
        try:
            async with asyncio.timeout(None) as limit:
                async for frame in self._socket.recv_streaming():
                    if not frames:
                        limit.reschedule(asyncio.get_running_loop().time() + self._limits.parts_s)
                    frames.append(frame)
        except TimeoutError:
            raise LinkFailed("the gateway began a message and does not end it") from None
        except WebSocketException as error:
            raise failure(error, self._said) from None
        whole: str | bytes = frames[0] if len(frames) == 1 else type(frames[0])().join(frames)
        return whole

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """End the connection, and say why; harmless if it is lost already."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._socket.close(code, reason[:100])
        except TimeoutError:  # a peer that does not read does not see the farewell either
            self._socket.transport.abort()


class _Connect(connect):
    """Goes where it was told to, or nowhere: a redirect is an answer like any other that is not a WebSocket."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


@asynccontextmanager
async def open_link(
    url: str, token: str, kind: TypeAdapter[Incoming], limits: LinkLimits, trust: ssl.SSLContext | None = None
) -> AsyncIterator[Link[Incoming]]:
    """A connection to `url` with `token`; closed at the end. Raises `LinkFailed` if there is none to be had.

    `trust`: for `wss://`, whose certificates are taken; None: those of the system's authorities."""
    # Without a proxy of the environment: gateways are neighbours, and a proxy cuts long connections. Without
    # compression: pictures have theirs.
    tls: dict[str, Any] = {"ssl": trust} if trust is not None and url.startswith("wss:") else {}
    largest = max(limits.max_message_bytes, limits.max_attachment_bytes)
    try:
        socket = await _Connect(
            url,
            additional_headers={"Authorization": f"Bearer {token}"},
            compression=None,
            proxy=None,
            open_timeout=limits.open_s,
            ping_interval=limits.ping_s,
            ping_timeout=limits.silent_s,
            close_timeout=_CLOSE_S,
            max_size=largest,
            max_queue=_FRAMES_AHEAD,
            logger=_QUIET,
            **tls,
        )
    except (OSError, TimeoutError, WebSocketException) as error:
        raise failure(error) from None
    link = Link(socket, kind, limits)
    code, reason = 1000, ""
    try:
        yield link
    except BadMessage as error:
        code, reason = error.close_code, str(error)
        raise
    finally:
        await link.close(code, reason)


def failure(error: Exception, said: str = "") -> LinkFailed:
    """What the library or the network raised, in words. `said`: what the gateway said last."""
    if isinstance(error, ConnectionClosed):
        told = error.rcvd
        if told is None:
            return LinkFailed("the connection broke" if error.sent is None else f"closed: {error.sent.reason}")
        reason = said or f"{told.code} {told.reason}".strip()
        return LinkFailed(f"the gateway closed the connection ({reason})", told.code)
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        # A gateway says so over the WebSocket.
        words = f"HTTP {status} came instead of a WebSocket: from a proxy, or is this not a gateway's port?"
        return LinkFailed(words, CloseCode.UNAUTHORIZED if status in {401, 403} else 0)
    if isinstance(error, ssl.SSLCertVerificationError):
        words = f"its certificate is not trusted: {error.verify_message}"
    elif isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        words = "it does not speak TLS: without TLS its address begins with ws://"
    elif isinstance(error, TimeoutError):
        words = "the gateway did not answer in time"
    elif isinstance(error, InvalidHandshake):
        words = f"no gateway there: {error}"
    else:
        words = f"{type(error).__name__}: {error}"
    return LinkFailed(words[:200])


def endpoints(urls: str | Sequence[str], path: str) -> tuple[str, ...]:
    """The addresses of gateways with the protocol's `path`. Raises `ValueError`, which says what an address is."""
    return tuple(url.removesuffix(path).rstrip("/") + path for url in gateway_urls(urls))


class BackOff:
    """Waits that grow with each failure, at random between nothing and the most (full jitter)."""

    def __init__(self, first_s: float = 0.2, longest_s: float = 10) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.failures = 0

    def next_s(self) -> float:
        """The wait after one more failure."""
        most = min(self._longest_s, self._first_s * 2 ** min(self.failures, 30))
        self.failures += 1
        return random.uniform(0, most)  # noqa: S311  # spreads load, guards nothing

    def reset(self) -> None:
        """All is well."""
        self.failures = 0

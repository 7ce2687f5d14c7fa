"""A WebSocket to a gateway, for nodes and sessions: messages with their attachments, and readable errors."""

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
"""How many frames the library reads ahead. Each may be as large as a picture."""
_QUIET = logging.getLogger(f"{__name__}.frames")
_QUIET.setLevel(logging.WARNING)
"""The library's logger, without DEBUG, which would record the token and the contents of frames."""


@dataclass(frozen=True)
class LinkLimits:
    """Time and size limits of a link."""

    open_s: float = 10
    """The time for the name look-up and the handshake."""
    ping_s: float = 5
    """The interval between pings."""
    silent_s: float = 15
    """The time after which an unanswered ping ends the connection."""
    send_s: float = 60
    """The time for sending one frame."""
    parts_s: float = 60
    """The time for all attachments of a message; also for the fragments of a message after the first."""
    max_message_bytes: int = 16 * 2**20
    """The size limit of a text frame."""
    max_attachment_bytes: int = 32 * 2**20
    """The size limit of all binary frames of one message together."""


class LinkFailed(Exception):
    """The connection failed; `str` gives the reason. `close_code`: the gateway's close code, or 0.

    `fatal`: a retry fails as well until an operator changes the token or the version."""

    def __init__(self, reason: str, close_code: int = 0) -> None:
        super().__init__(reason)
        self.close_code = close_code
        self.fatal = close_code in {CloseCode.UNAUTHORIZED, CloseCode.VERSION}


class Oversize(BadMessage):
    """The attachments of `message` exceed the limit. They were not read."""

    def __init__(self, message: object) -> None:
        super().__init__("the attachments are too large", CloseCode.TOO_LARGE)
        self.message = message


class Link(Generic[Incoming]):
    """One open connection. Every method raises `LinkFailed` once the connection is lost."""

    def __init__(self, socket: ClientConnection, kind: TypeAdapter[Incoming], limits: LinkLimits) -> None:
        self._socket = socket
        self._kind = kind
        self._limits = limits
        self._sending = asyncio.Lock()
        self._last_error = ""

    async def send(self, message: Message | bytes, parts: Sequence[bytes] = ()) -> None:
        """Send a message, encoded or not, and its attachments.

        A cancelled or failed call aborts the connection, since the gateway has only a part of the message.
        """
        head = message if isinstance(message, bytes) else message.model_dump_json(exclude_none=True).encode()
        async with self._sending:
            complete = False
            try:
                await self._frame(head, text=True)
                for part in parts:
                    await self._frame(part, text=False)
                complete = True
            finally:
                if not complete:
                    self._socket.transport.abort()

    async def _frame(self, data: bytes, *, text: bool) -> None:
        try:
            async with asyncio.timeout(self._limits.send_s):
                await self._socket.send(data, text=text)
        except TimeoutError:
            raise LinkFailed("the gateway reads too slowly") from None
        except WebSocketException as error:
            raise failure(error) from None

    async def receive(self) -> tuple[Incoming, tuple[bytes, ...]]:
        """Return the next message of a known type with its attachments; skip others. Raises `BadMessage` for invalid
        frames, `LinkFailed` if the connection is lost or an attachment is late.

        An `error` message of the gateway becomes the reason of the `LinkFailed` that follows it.
        """
        while True:
            text = await self._next()
            if not isinstance(text, str):
                raise BadMessage("a binary frame without a message that announces it")
            message = parse(text, self._kind)
            if message is None:
                announced = json.loads(text).get("attachments")
                await self._parts([None] * len(announced) if isinstance(announced, list) else [])
            elif isinstance(message, Error):
                self._last_error = f"{message.code}: {message.message}"[:300]
            else:
                sizes = [each.size for each in message.attachments] if isinstance(message, WithAttachments) else []
                if sum(sizes) > self._limits.max_attachment_bytes:
                    raise Oversize(message)
                return message, await self._parts(sizes)

    async def _parts(self, sizes: Sequence[int | None]) -> tuple[bytes, ...]:
        """Read the attachments of a message. Those whose size is None are read and replaced by empty bytes."""
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
            raise LinkFailed("the gateway announced attachments and did not send them in time") from None
        return tuple(parts)

    async def _next(self) -> str | bytes:
        """Read the next message. Its fragments must arrive within `parts_s` after the first."""
        frames: list[Any] = []
        try:
            async with asyncio.timeout(None) as limit:
                async for frame in self._socket.recv_streaming():
                    if not frames:
                        limit.reschedule(asyncio.get_running_loop().time() + self._limits.parts_s)
                    frames.append(frame)
        except TimeoutError:
            raise LinkFailed("the gateway began a message and did not complete it in time") from None
        except WebSocketException as error:
            raise failure(error, self._last_error) from None
        whole: str | bytes = frames[0] if len(frames) == 1 else type(frames[0])().join(frames)
        return whole

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection with a code and a reason. Harmless if it is lost already."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._socket.close(code, reason[:100])
        except TimeoutError:  # the gateway does not read
            self._socket.transport.abort()


class _Connect(connect):
    """Follows no redirects: a redirect is an error, like any other answer that is not a WebSocket."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


@asynccontextmanager
async def open_link(
    url: str, token: str, kind: TypeAdapter[Incoming], limits: LinkLimits, trust: ssl.SSLContext | None = None
) -> AsyncIterator[Link[Incoming]]:
    """Connect to `url` with `token`, and close the connection at the end of the block. Raises `LinkFailed`.

    `kind`: the messages that the link accepts; `trust`: the trusted authorities for `wss://`, None: those of the
    system.
    """
    # Ignore proxies of the environment: gateways are usually near, and proxies cut long connections. Do not compress:
    # pictures are compressed already.
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


def failure(error: Exception, last_error: str = "") -> LinkFailed:
    """Return the `LinkFailed` for an error of the library or the network. `last_error`: the gateway's last `error`
    message."""
    if isinstance(error, ConnectionClosed):
        close = error.rcvd
        if close is None:
            return LinkFailed("the connection broke" if error.sent is None else f"closed: {error.sent.reason}")
        reason = last_error or f"{close.code} {close.reason}".strip()
        return LinkFailed(f"the gateway closed the connection ({reason})", close.code)
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        # A gateway refuses with a close code, after the handshake.
        text = f"the address answered HTTP {status} instead of a WebSocket: a proxy, or not a gateway's port?"
        return LinkFailed(text, CloseCode.UNAUTHORIZED if status in {401, 403} else 0)
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"its certificate is not trusted: {error.verify_message}"
    elif isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        text = "it does not speak TLS: without TLS its address begins with ws://"
    elif isinstance(error, TimeoutError):
        text = "the gateway did not answer in time"
    elif isinstance(error, InvalidHandshake):
        text = f"no gateway there: {error}"
    else:
        text = f"{type(error).__name__}: {error}"
    return LinkFailed(text[:200])


def endpoints(urls: str | Sequence[str], path: str) -> tuple[str, ...]:
    """Return the addresses of gateways, each with the protocol's `path`. Raises `ValueError` for an invalid address."""
    return tuple(url.removesuffix(path).rstrip("/") + path for url in gateway_urls(urls))


class BackOff:
    """Waits that grow with each failure: random between 0 and a limit that doubles (full jitter)."""

    def __init__(self, first_s: float = 0.2, longest_s: float = 10) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.failures = 0

    def next_s(self) -> float:
        """Count a failure, and return how many seconds to wait after it; does not wait itself."""
        most = min(self._longest_s, self._first_s * 2 ** min(self.failures, 30))
        self.failures += 1
        return random.uniform(0, most)  # noqa: S311  # spreads load, guards nothing

    def reset(self) -> None:
        """Forget the failures, so that the next wait is short again."""
        self.failures = 0

"""Bodies of requests and answers: limited in size, and in the time that the other side may take."""

import asyncio
import time
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.interfaces.api.problems import Refused
from pipeline.settings import ApiSettings

_ENVELOPE_BYTES = 1_000_000
"""What a multipart upload may have besides its file."""
_JSON_S = 60.0
"""How long a body may take that is not an upload."""
_HELD = 16
"""How many of the largest such bodies are held in memory at once."""
_MAX_BRACKETS = 200_000
"""Of JSON: a million lists in four megabytes take seconds to parse, in which nobody else is served."""
_UPLOADS = ("multipart/form-data", "application/octet-stream", "application/pdf", "image/")


def is_upload(headers: Headers) -> bool:
    """Whether the body is a file, or a form with files: it may be large, and is never held in memory."""
    return headers.get("content-type", "").strip().lower().startswith(_UPLOADS)


class BodyLimits:
    """Raises `Refused`: 413 for bodies too large, at once where the head says so; 408 for those that do not come on.

    Whoever does not read the answer is left alone after the idle time-out.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings
        self._held = Held(_HELD * settings.max_json_mb * 1_000_000)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self._limit(headers)
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise _too_large(limit)
        incoming = Incoming(receive, self._settings, self._held, counts_brackets=not is_upload(headers))
        scope.setdefault("state", {})["incoming"] = incoming
        idle_s = self._settings.idle_timeout_s

        async def sending(message: Message) -> None:
            async with asyncio.timeout(idle_s):
                await send(message)

        try:
            await self._app(scope, incoming, sending)
        finally:
            incoming.let_go()

    def _limit(self, headers: Headers) -> int:
        return _of_uploads(self._settings) if is_upload(headers) else self._settings.max_json_mb * 1_000_000


@dataclass
class Held:
    """How much of bodies that are no uploads is in memory, of all requests together."""

    most: int
    now: int = 0


def _of_uploads(settings: ApiSettings) -> int:
    return settings.max_upload_mb * 1_000_000 + _ENVELOPE_BYTES


class Incoming:
    """The body of one request, as it comes: small, and in memory, unless it is taken as an upload.

    Whatever a body says of itself, endpoints that expect no files, or callers who may not send any, get no large one.
    """

    def __init__(self, receive: Receive, settings: ApiSettings, held: Held, *, counts_brackets: bool) -> None:
        self._receive = receive
        self._limit = settings.max_json_mb * 1_000_000
        self._settings = settings
        self._held: Held | None = held
        self._counts_brackets = counts_brackets
        self._within_s = _JSON_S
        self._received = self._brackets = 0
        self._began = time.monotonic()
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:  # from now on it only says when the client has gone
            return await self._receive()
        idle_s = self._settings.idle_timeout_s
        try:
            async with asyncio.timeout(idle_s):
                message = await self._receive()
        except TimeoutError:
            raise _slow() from None
        self._whole = message["type"] != "http.request" or not message.get("more_body", False)
        body = message.get("body", b"")
        self._received += len(body)
        if self._held:
            self._held.now += len(body)
        if self._counts_brackets:
            self._brackets += body.count(b"[") + body.count(b"{")
        if self._received > self._limit:
            raise _too_large(self._limit)
        if self._brackets > _MAX_BRACKETS:
            said = f"the body has more than {_MAX_BRACKETS:,} lists and objects"
            raise Refused(said, code="too_large", headers={"Connection": "close"})
        if self._held and self._held.now > self._held.most:
            raise Refused("too much is being sent at the same time: try again in a moment", code="busy")
        took_s = time.monotonic() - self._began
        too_slow = self._received < (took_s - idle_s) * self._settings.least_bytes_per_s
        if not self._whole and (too_slow or took_s > self._within_s):
            raise _slow()
        return message

    def take_files(self) -> None:
        """From now on it may be as large as uploads are, and take as long: whoever reads it writes it to disk."""
        self.let_go()
        self._held, self._counts_brackets = None, False
        self._limit, self._within_s = _of_uploads(self._settings), self._settings.body_timeout_s

    def let_go(self) -> None:
        """The request has been answered."""
        if self._held:
            self._held.now -= self._received


def _too_large(limit: int) -> Refused:
    return Refused(f"the body is larger than {limit / 1e6:g} MB", code="too_large", headers={"Connection": "close"})


def _slow() -> Refused:
    return Refused("the body did not come on", code="slow", headers={"Connection": "close"})

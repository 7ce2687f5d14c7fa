"""Limits on the bodies of requests and answers: their size, and the time that the client may take."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.operations.refusal import Refused
from pipeline.settings import ApiSettings

_ENVELOPE_BYTES = 1_000_000
"""Bytes that a multipart upload may add to its file: boundaries, headers, fields."""
_JSON_S = 60.0
"""Seconds within which a body that is not an upload arrives."""
_HELD, _HELD_EACH = 16, 4
"""How many such bodies of the largest size memory may hold: of all callers, of one caller."""
_UPLOADS = ("multipart/form-data", "application/octet-stream", "application/pdf", "image/")


def is_upload(headers: Headers) -> bool:
    """Whether the content type announces a file, or a form with files: such a body may be large, and goes to disk."""
    return headers.get("content-type", "").strip().lower().startswith(_UPLOADS)


class BodyLimits:
    """Raises `Refused`: 413 for a body too large, at once where the head declares it; 408 for one that stalls or takes
    too long; 429 or 503 while other small bodies fill the memory allowed for them.

    A client that stops reading the answer loses its connection after the idle time-out.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings
        largest = settings.max_json_mb * 1_000_000
        self._held = Held(_HELD * largest, _HELD_EACH * largest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self._limit(headers)
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise _too_large(limit)
        incoming = Incoming(scope, receive, self._settings, self._held)
        scope.setdefault("state", {})["incoming"] = incoming
        idle_s = self._settings.idle_timeout_s

        async def sending(message: Message) -> None:
            async with asyncio.timeout(idle_s):
                await send(message)

        try:
            await self._app(scope, incoming, sending)
        finally:
            incoming.release()

    def _limit(self, headers: Headers) -> int:
        return _of_uploads(self._settings) if is_upload(headers) else self._settings.max_json_mb * 1_000_000


@dataclass
class Held:
    """The bytes of small bodies (not uploads) in memory: `most` of all requests, `each` of one caller."""

    most: int
    each: int
    by_caller: Counter[str] = field(default_factory=Counter)

    def add(self, caller: str, count: int) -> None:
        """Count bytes of a caller.

        Raises `Refused` above a limit: 429 for the caller's own limit, 503 for that of all callers. The bytes count
        even then, so call `release`.
        """
        self.by_caller[caller] += count
        if self.by_caller[caller] > self.each:
            detail = "your requests send too much at the same time: wait until one of them ends"
            raise Refused(detail, code="too_many_requests")
        if self.by_caller.total() > self.most:
            raise Refused("all requests together send too much: try again in a moment", code="busy")

    def release(self, caller: str, count: int) -> None:
        """Subtract bytes that `add` counted."""
        self.by_caller[caller] -= count
        self.by_caller += Counter()  # drops callers with none


def _of_uploads(settings: ApiSettings) -> int:
    return settings.max_upload_mb * 1_000_000 + _ENVELOPE_BYTES


class Incoming:
    """The body of one request as it arrives: small, and in memory, until an endpoint calls `take_files`.

    So an endpoint without files, or a caller without the right to send them, never receives a large body.
    """

    def __init__(self, scope: Scope, receive: Receive, settings: ApiSettings, held: Held) -> None:
        self._scope = scope
        self._receive = receive
        self._limit = settings.max_json_mb * 1_000_000
        self._settings = settings
        self._held: Held | None = held
        self._within_s = _JSON_S
        self._received = self._kept_bytes = 0
        self._began = time.monotonic()
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:  # from now on, messages only report that the client disconnected
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
        if self._received > self._limit:
            raise _too_large(self._limit)
        if self._held:
            self._kept_bytes += len(body)
            self._held.add(self._caller, len(body))
        took_s = time.monotonic() - self._began
        too_slow = self._received < (took_s - idle_s) * self._settings.least_bytes_per_s
        if not self._whole and (too_slow or took_s > self._within_s):
            raise _slow()
        return message

    def take_files(self) -> None:
        """Allow the size and the time of an upload.

        The body no longer counts as in memory: the endpoint writes it to disk.
        """
        self.release()
        self._held = None
        self._limit, self._within_s = _of_uploads(self._settings), self._settings.body_timeout_s

    def release(self) -> None:
        """Subtract this body from the bytes held in memory."""
        if self._held:
            self._held.release(self._caller, self._kept_bytes)
            self._kept_bytes = 0

    @property
    def _caller(self) -> str:
        """The caller's id; `CallerMiddleware` sets it before anything reads the body."""
        caller = self._scope["state"].get("caller")
        return caller.id if caller else ""


def _too_large(limit: int) -> Refused:
    return Refused(f"the body is larger than {limit / 1e6:g} MB", code="too_large", headers={"Connection": "close"})


def _slow() -> Refused:
    return Refused("the body arrived too slowly", code="slow", headers={"Connection": "close"})


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first gives this body as one message, then passes on later messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed

"""Bodies of requests and answers: limited in size, and in the time that the other side may take."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.operations.refusal import Refused
from pipeline.settings import ApiSettings

_ENVELOPE_BYTES = 1_000_000
"""What a multipart upload may have besides its file."""
_JSON_S = 60.0
"""How long a body may take that is not an upload."""
_HELD, _HELD_EACH = 16, 4
"""How many of the largest such bodies are held in memory at once, of all callers and of one."""
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
            incoming.let_go()

    def _limit(self, headers: Headers) -> int:
        return _of_uploads(self._settings) if is_upload(headers) else self._settings.max_json_mb * 1_000_000


@dataclass
class Held:
    """The bytes of small bodies (not uploads) in memory: `most` of all requests, `each` of one caller."""

    most: int
    each: int
    by_caller: Counter[str] = field(default_factory=Counter)

    def add(self, caller: str, count: int) -> None:
        """Count more bytes. Raises `Refused` if they are too many; the caller calls `let_go` even then."""
        self.by_caller[caller] += count
        if self.by_caller[caller] > self.each:
            said = "too much of yours is being sent at the same time: wait for one request"
            raise Refused(said, code="too_many_requests")
        if self.by_caller.total() > self.most:
            raise Refused("too much is being sent at the same time: try again in a moment", code="busy")

    def let_go(self, caller: str, count: int) -> None:
        """Subtract bytes that were counted."""
        self.by_caller[caller] -= count
        self.by_caller += Counter()  # drops callers with none


def _of_uploads(settings: ApiSettings) -> int:
    return settings.max_upload_mb * 1_000_000 + _ENVELOPE_BYTES


class Incoming:
    """The body of one request, as it comes: small, and in memory, unless it is taken as an upload.

    Whatever a body says of itself, endpoints that expect no files, or callers who may not send any, get no large one.
    """

    def __init__(self, scope: Scope, receive: Receive, settings: ApiSettings, held: Held) -> None:
        self._scope = scope
        self._receive = receive
        self._limit = settings.max_json_mb * 1_000_000
        self._settings = settings
        self._held: Held | None = held
        self._within_s = _JSON_S
        self._received = self._kept = 0
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
        if self._received > self._limit:
            raise _too_large(self._limit)
        if self._held:
            self._kept += len(body)
            self._held.add(self._caller, len(body))
        took_s = time.monotonic() - self._began
        too_slow = self._received < (took_s - idle_s) * self._settings.least_bytes_per_s
        if not self._whole and (too_slow or took_s > self._within_s):
            raise _slow()
        return message

    def take_files(self) -> None:
        """From now on it may be as large as uploads are, and take as long: whoever reads it writes it to disk."""
        self.let_go()
        self._held = None
        self._limit, self._within_s = _of_uploads(self._settings), self._settings.body_timeout_s

    def let_go(self) -> None:
        """The request has been answered."""
        if self._held:
            self._held.let_go(self._caller, self._kept)
            self._kept = 0

    @property
    def _caller(self) -> str:
        """Who sends it: nothing is read before that is known."""
        caller = self._scope["state"].get("caller")
        return caller.id if caller else ""


def _too_large(limit: int) -> Refused:
    return Refused(f"the body is larger than {limit / 1e6:g} MB", code="too_large", headers={"Connection": "close"})


def _slow() -> Refused:
    return Refused("the body did not come on", code="slow", headers={"Connection": "close"})


def again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that repeats the body, then passes on later messages."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again

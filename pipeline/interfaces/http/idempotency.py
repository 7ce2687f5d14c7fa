"""`Idempotency-Key` for every POST and PATCH: the server acts once, and repeats its first answer to repeated requests.

The hash of an upload's content recognises it once it has arrived, because a client that repeats a form draws another
boundary. An error leaves the key free: the server did nothing, or may do it again without harm. So does an answer with
`Cache-Control: no-store`, since it holds a secret.
"""

import hashlib
import json
from collections.abc import MutableMapping
from datetime import timedelta
from typing import Any

from anyio import CancelScope
from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.interfaces.http.bodies import is_upload, replay
from pipeline.operations.refusal import Refused
from pipeline.storage import idempotency
from pipeline.storage.context import Context
from pipeline.storage.idempotency import Answer, KeyClaim

MAX_KEY = 255
MAX_KEPT_BYTES = 1_000_000
"""The database keeps no longer answer: a repeated request then acts again."""
_KEPT_HEADERS = frozenset({"content-type", "location", "retry-after", "content-disposition"})


class _Replayed(Exception):
    """An earlier request with this key has an answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


class _Once:
    """One request with a key."""

    def __init__(self, context: Context, owner: str, key: str, request: str) -> None:
        self._context = context
        self._owner = owner
        self._key = key
        self._request = request
        self._claim: KeyClaim | None = None

    async def begin(self, content: str) -> None:
        """Claim the key for this content. Raises `_Replayed` if the same request has an answer already.

        Raises `AnotherRequest` if the key belongs to another request, `StillRunning` if the first one is not answered
        yet.
        """
        fingerprint = hashlib.sha256(f"{self._request}\n{content}".encode()).hexdigest()
        keep = timedelta(hours=self._context.settings.api.idempotency_hours)
        claim = await run_sync(idempotency.begin, self._context, self._owner, self._key, fingerprint, keep)
        if isinstance(claim, Answer):
            raise _Replayed(claim)
        self._claim = claim

    async def end(self, answer: Answer | None) -> None:
        """Store the answer for repeated requests, or with None free the key. Does nothing without a claim."""
        claim, self._claim = self._claim, None
        if claim is None:
            return
        with CancelScope(shield=True):  # a client that disconnects must not leave the key claimed
            if answer is None:
                await run_sync(idempotency.release, self._context, claim)
            else:
                await run_sync(idempotency.settle, self._context, claim, answer)


async def recognise(request: Request, content: str) -> None:
    """Claim the request's `Idempotency-Key`, if it has one. `content`: the hash of the upload, by which a repeated
    request is recognised.

    Raises `_Replayed` if the request has an answer already, `AnotherRequest` or `StillRunning` if the key is taken.
    """
    once: _Once | None = getattr(request.state, "once", None)
    if once is not None:
        await once.begin(content)


class Idempotency:
    """Repeats the first answer."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = self._key(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        request = f"{scope['method']} {scope['path']}?{scope['query_string'].decode('latin-1')}"
        once = _Once(self._context, scope["state"]["caller"].id[:64], key, request)
        scope["state"]["once"] = once
        recorder = _Kept(send, once)
        try:
            if not is_upload(Headers(scope=scope)):
                body = await _whole(receive)
                await once.begin(hashlib.sha256(body).hexdigest())
                receive = replay(body, receive)
            await self._app(scope, receive, recorder)
        except _Replayed as replayed:
            await _response(replayed.answer)(scope, receive, send)
        finally:
            await once.end(None)  # frees the key unless an answer was kept

    def _key(self, scope: Scope) -> str | None:
        if scope["type"] != "http" or scope["method"] not in {"POST", "PATCH"}:
            return None
        key = Headers(scope=scope).get("idempotency-key")
        if key is None or scope["state"]["caller"].scope is None:
            return None
        if not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
            raise Refused(f"an Idempotency-Key has 1 to {MAX_KEY} printable characters", code="bad_request")
        return key


class _Kept:
    """Holds an answer back until the database has it. Passes long answers and streams on, and keeps none of them."""

    def __init__(self, send: Send, once: _Once) -> None:
        self._send = send
        self._once = once
        self._held: list[MutableMapping[str, Any]] | None = []
        self._bytes = 0

    async def __call__(self, message: Message) -> None:
        if self._held is None:
            await self._send(message)
            return
        self._held.append(message)
        self._bytes += len(message.get("body", b""))
        ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        if ended:
            await self._once.end(self._answer(self._held))
        if ended or self._bytes > MAX_KEPT_BYTES:
            held, self._held = self._held, None
            for part in held:
                await self._send(part)

    def _answer(self, held: list[MutableMapping[str, Any]]) -> Answer | None:
        if self._bytes > MAX_KEPT_BYTES or not 200 <= held[0]["status"] < 400:
            return None
        if Headers(scope=held[0]).get("cache-control") == "no-store":
            return None  # it holds a secret
        headers = [(name, value) for name, value in Headers(scope=held[0]).items() if name in _KEPT_HEADERS]
        return Answer(held[0]["status"], json.dumps(headers), b"".join(part.get("body", b"") for part in held))


def _response(answer: Answer) -> Response:
    headers = {**dict(json.loads(answer.headers)), "Idempotency-Replayed": "true"}
    return Response(answer.body, answer.status, headers)


async def _whole(receive: Receive) -> bytes:
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
    raise ClientDisconnect

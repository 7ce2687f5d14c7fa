"""The guard in front of the gateway's application: refuses requests, and sets security headers."""

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.interfaces.http.hosts import PROBLEM, SECURITY_HEADERS, holds_secret, host_of, is_own_host, problem
from pipeline.nodes import tokens
from pipeline.standalone.address import is_loopback
from pipeline.storage.context import Context

_OPEN = frozenset({"/healthz", "/readyz"})
"""Paths for monitors, which need no token: they reveal only whether the gateway works."""


class Guard:
    """Refuses WebSockets of browsers, and tokens in an address.

    The other paths need a token, or a call from this machine under its own name. The guard does not check the host name
    of WebSockets, because only browsers can be tricked by a foreign name.
    """

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = await self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, sending)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: 403
        else:
            status, code, message = refusal
            await Response(problem(status, code, message), status, media_type=PROBLEM)(scope, receive, sending)

    async def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        """Return (status, code, message) if the guard refuses the request; None if it passes."""
        headers = Headers(scope=scope)
        if holds_secret(scope):
            return 400, "key_in_address", "the address contains a token, which logs may record: revoke the token"
        if scope["type"] == "websocket":
            # Browsers always send an origin; nodes and sessions never do.
            return (403, "bad_origin", "web pages cannot connect to the gateway") if "origin" in headers else None
        if scope["path"] in _OPEN or (_is_local(scope) and is_own_host(host_of(headers.get("host", "")), scope)):
            return None
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            token = await asyncio.to_thread(tokens.authenticate, self._context, secret.strip())
            if token is not None:
                return None
        return 401, "unauthorized", "a token is needed: send it as `Authorization: Bearer …`"


def _is_local(scope: Scope) -> bool:
    """Whether the client connected to a loopback address."""
    host, _ = scope.get("server") or ("", None)
    return is_loopback(host)

"""What the gateway refuses before its application is asked, and the headers of its answers."""

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.interfaces.http.hosts import PROBLEM, SECURITY_HEADERS, holds_secret, host_of, is_ours, problem
from pipeline.nodes import tokens
from pipeline.standalone.address import is_loopback
from pipeline.storage.context import Context

_OPEN = frozenset({"/healthz", "/readyz"})
"""For monitors: they say that it lives, and nothing else."""


class Guard:
    """Takes no WebSocket of a browser and no token in an address, and tells figures to those alone who may have them.

    Those are whoever calls this machine from itself, by its own name, and whoever has a token. Nodes come under any
    host name: none of them can be deceived about it as a browser can.
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
            status, code, said = refusal
            await Response(problem(status, code, said), status, media_type=PROBLEM)(scope, receive, sending)

    async def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        """(status, code, words) for what is refused."""
        headers = Headers(scope=scope)
        if holds_secret(scope):
            return 400, "key_in_address", "a token must not stand in an address, where logs keep it: revoke it"
        if scope["type"] == "websocket":
            # Nodes and sessions send none, browsers always do.
            return (403, "bad_origin", "pages have no business here") if "origin" in headers else None
        if scope["path"] in _OPEN or (_is_near(scope) and is_ours(host_of(headers.get("host", "")), scope)):
            return None
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            found = await asyncio.to_thread(tokens.authenticate, self._context, secret.strip())
            if found is not None:
                return None
        return 401, "unauthorized", "a token is needed: send it as `Authorization: Bearer …`"


def _is_near(scope: Scope) -> bool:
    """Whether the connection came to an address that only this machine reaches."""
    host, _ = scope.get("server") or ("", None)
    return is_loopback(host)

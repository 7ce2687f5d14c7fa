"""The outermost layer: which hosts and origins may call, security headers, one log line, an answer to every error."""

import time
from collections.abc import Callable
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.interfaces.http.hosts import (
    SAFE,
    SECURITY_HEADERS,
    holds_secret,
    host_of,
    is_own_host,
    netloc_of,
    without_secrets,
)
from pipeline.operations.refusal import Refused
from pipeline.settings import ApiSettings

log = structlog.get_logger(__name__)
GONE = 499
"""The status in the log of a request whose client broke off the body: the server sends no answer."""


class Guard:
    """Refuses requests that a page of another site makes a browser send, and answers every exception."""

    def __init__(self, app: ASGIApp, settings: ApiSettings, answer: Callable[[Exception, Request], Response]) -> None:
        self._app = app
        self._answer = answer
        self._prefix = settings.prefix
        self._hosts = {name.lower() for name in settings.allowed_hosts}
        self._origins = {origin.lower().rstrip("/") for origin in settings.allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, began, status = uuid4().hex, time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers["x-request-id"] = request_id
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id
        self._place(scope)
        with structlog.contextvars.bound_contextvars(request=request_id[:8]):
            try:
                self._check(scope)
                await self._app(scope, receive, sending)
            except ClientDisconnect:
                status = GONE
            except Exception as error:
                if status:  # too late for another answer: the connection breaks off, and the client sees that
                    log.warning("api.broken_off", path=scope["path"], error=type(error).__name__)
                    raise
                await self._answer(error, Request(scope))(scope, receive, sending)
            finally:
                self._log(scope, status, began)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a WebSocket on, or close it before it is accepted: the client gets 403."""
        self._place(scope)
        try:
            self._check(scope)
            await self._app(scope, receive, send)
        except Refused as error:
            log.info("api.socket_refused", path=without_secrets(scope["path"]), code=error.code)
            await send({"type": "websocket.close", "code": 1008})

    def _place(self, scope: Scope) -> None:
        """Set `root_path` to the prefix, and add the prefix to a path from which the proxy removed it."""
        if self._prefix:
            path: str = scope["path"]
            inside = path == self._prefix or path.startswith(f"{self._prefix}/")
            scope["path"] = path if inside else f"{self._prefix}{path}"
            scope["root_path"] = self._prefix

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not is_own_host(host_of(host), scope, self._hosts):
            raise Refused(
                "this server does not answer under this host name: add it to PENSTOCK_API__ALLOWED_HOSTS",
                code="wrong_host",
            )
        # docling-client repeats its key in a WebSocket's address. Only the header counts, and no log of ours has it.
        if scope["type"] == "http" and holds_secret(scope):
            raise Refused(
                "logs keep addresses, so a key must not stand in one: revoke this key, and send another as a header",
                code="key_in_address",
            )
        origin = headers.get("origin", "").lower().rstrip("/")
        own = not origin or netloc_of(origin) == host.lower()
        if origin in self._origins or (own and (origin or not _is_of_another_site(headers))):
            return
        # A link on another site may open a page. `check_same_site` refuses requests that such a link must not cause.
        followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if own and followed and scope.get("method") in SAFE:
            return
        raise Refused(
            "this server refuses requests from pages of other sites: see PENSTOCK_API__ALLOWED_ORIGINS",
            code="bad_origin",
        )

    def _log(self, scope: Scope, status: int, began: float) -> None:
        # The path alone: a query may hold the words of a search.
        caller = scope["state"].get("caller")
        write = log.info if scope["method"] not in SAFE or status >= 500 else log.debug
        write(
            "api.request",
            method=scope["method"][:10],
            path=without_secrets(scope["path"]),
            status=status,
            took_ms=round((time.monotonic() - began) * 1000),
            caller=getattr(caller, "id", ""),
        )


def _is_of_another_site(headers: Headers) -> bool:
    """Whether `Sec-Fetch-Site` says that a page of another origin caused this request: `cross-site` or `same-site`.
    False without the header."""
    return headers.get("sec-fetch-site") in {"cross-site", "same-site"}


def check_same_site(request: Request) -> None:
    """Raise `Refused` (403) where a link on a page of another site led here. For GETs that may spend money.

    `Guard` admits only our own `Origin` and those that the settings allow.
    """
    if _is_of_another_site(request.headers) and "origin" not in request.headers:
        raise Refused("this may cost money, and another site asked for it: repeat it here", code="bad_origin")

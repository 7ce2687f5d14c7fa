"""The outermost layer: which hosts and origins may call, security headers, one log line, an answer to every error."""

import ipaddress
import time
from collections.abc import Collection
from urllib.parse import urlsplit
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.interfaces.api.problems import Refused, response_for
from pipeline.settings import ApiSettings

log = structlog.get_logger(__name__)
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "cache-control": "no-store",
}
"""For answers that say nothing else of themselves."""


class Guard:
    """Refuses what other sites' pages make a browser send, and lets no exception out."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._prefix = settings.prefix
        self._hosts = {name.lower() for name in settings.allowed_hosts}
        self._origins = {origin.lower().rstrip("/") for origin in settings.allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, began, status = uuid4().hex, time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers["x-request-id"] = request_id
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id
        self._place(scope)
        with structlog.contextvars.bound_contextvars(request=request_id[:8]):
            try:
                self._check(scope)
                await self._app(scope, receive, sending)
            except Exception as error:
                if status:  # too late for another answer: the connection breaks off, and the client sees that
                    log.warning("api.broken_off", path=scope["path"], error=type(error).__name__)
                    raise
                await response_for(error, Request(scope))(scope, receive, sending)
            finally:
                self._log(scope, status, began)

    def _place(self, scope: Scope) -> None:
        """Take the prefix for the application's root, whether the proxy left it in the path or not."""
        if self._prefix:
            path: str = scope["path"]
            inside = path == self._prefix or path.startswith(f"{self._prefix}/")
            scope["path"] = path if inside else f"{self._prefix}{path}"
            scope["root_path"] = self._prefix

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        given = headers.get("host", "")
        host = _host_of(given)
        if not self._is_ours(host, scope):
            raise Refused(
                "this server does not answer under this host name: add it to PENSTOCK_API__ALLOWED_HOSTS",
                code="wrong_host",
            )
        if scope["method"] in SAFE:
            return
        origin = headers.get("origin", "").lower().rstrip("/")
        own = not origin or _netloc_of(origin) == given.lower()
        foreign = headers.get("sec-fetch-site", "") == "cross-site" and not origin
        if foreign or not (own or origin in self._origins):
            raise Refused(
                "pages of other sites may not change anything here: see PENSTOCK_API__ALLOWED_ORIGINS",
                code="bad_origin",
            )

    def _is_ours(self, host: str, scope: Scope) -> bool:
        """A name that is ours. The address that the connection came to is: no site can have it as its own name."""
        address = scope["server"][0] if scope.get("server") else ""
        names: Collection[str] = LOOPBACK | self._hosts
        return host in names or "*" in self._hosts or (_is_address(host) and host == address)

    def _log(self, scope: Scope, status: int, began: float) -> None:
        # The path alone: a query may hold what somebody looked for.
        caller = scope["state"].get("caller")
        say = log.info if scope["method"] not in SAFE or status >= 500 else log.debug
        say(
            "api.request", method=scope["method"], path=scope["path"][:200], status=status,
            took_ms=round((time.monotonic() - began) * 1000), caller=getattr(caller, "id", ""),
        )  # fmt: skip


def _host_of(given: str) -> str:
    """The name in a Host header, without its port; empty for nonsense."""
    try:
        return (urlsplit(f"//{given}").hostname or "").rstrip(".") if given.isascii() and "@" not in given else ""
    except ValueError:
        return ""


def _netloc_of(origin: str) -> str:
    """Host and port of an origin; empty for nonsense."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

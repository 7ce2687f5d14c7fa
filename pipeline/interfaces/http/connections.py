"""What our servers share: a listening socket, an orderly shutdown, and time-outs for silent clients."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event
from types import FrameType
from typing import Any, Protocol

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipeline.engine.errors import UserError
from pipeline.interfaces.http.hosts import PROBLEM, SECURITY_HEADERS, problem
from pipeline.standalone.address import is_loopback

KEEP_ALIVE_S = 15
_DISCARD_S = 5.0
"""Seconds for which the server reads the rest of a refused body, so that the client can read the answer."""
BACKLOG = 512
MAX_HEAD_BYTES = 32 * 1024
_HEAD_TAKES_S = 1.0
"""Seconds after which an incomplete head counts as one of its address's slow heads."""


class PortInUse(UserError):
    """Another process listens on the port."""

    def __init__(self, host: str, port: int, setting: str) -> None:
        super().__init__(
            f"port {port} on {host} is in use: stop the process that listens there, or set {setting}",
            code="port_in_use",
        )


def bind(host: str, port: int, setting: str) -> socket.socket:
    """Return a listening socket. Raises `PortInUse`, or `UserError` if listening fails otherwise, as for an unknown
    host, an address of another machine or a port that needs root.

    `setting`: the setting of the port, named in the error.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address, family=family, backlog=BACKLOG)
        # Connections inherit it. Else a body that follows its head waits 40 ms for the client's acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        if "in use" in str(error).lower():
            raise PortInUse(host, port, setting) from error
        raise UserError(f"cannot listen on {host}: {error.strerror or error}", code="usage") from error


def check_openness(host: str, settings: "Exposed", section: str) -> None:
    """Raise `UserError` for a certificate that cannot be used, and `NoTls` if keys would cross a network in the clear.

    `section` names the settings: `API`, `GATEWAY`.
    """
    if settings.tls_certificate:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
        except OSError as error:  # those of TLS are among them
            names = f"PENSTOCK_{section}__TLS_CERTIFICATE and PENSTOCK_{section}__TLS_KEY"
            message = f"{names} are not a PEM certificate and its key: {error.strerror or error}"
            raise UserError(message, code="tls") from None
    elif not (is_loopback(host) or settings.tls_by_proxy):
        raise NoTls(host, section)


class Exposed(Protocol):
    """Settings of a server that others may reach."""

    tls_certificate: str
    tls_key: str
    tls_by_proxy: bool


class NoTls(UserError):
    """Keys would cross a network in the clear."""

    def __init__(self, host: str, section: str) -> None:
        super().__init__(
            f"keys would cross the network in the clear if this server listened on {host} without TLS: set "
            f"PENSTOCK_{section}__TLS_CERTIFICATE and PENSTOCK_{section}__TLS_KEY or, if clients can reach the server "
            f"only through a proxy that speaks TLS, PENSTOCK_{section}__TLS_BY_PROXY=true",
            code="no_tls",
        )


class Server(uvicorn.Server):
    """Sets `ending` when it shuts down, so that long polls and streams end at once."""

    def __init__(self, config: uvicorn.Config, ending: Event) -> None:
        super().__init__(config)
        self._ending = ending
        self._wake: Callable[[], object] = lambda: None

    async def main_loop(self) -> None:
        """Tick once a second, as the `Date` header needs, until the server is to stop. uvicorn ticks ten times."""
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(ended.set)
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), 1.0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # uvicorn's own handler raises the signal again at the end, and the process would exit as if it had failed.
        self._ending.set()
        self.force_exit = self.should_exit
        self.should_exit = True
        self._wake()


def _plain(body: bytes, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a problem (`body`: its JSON) that the server answers without the application, among them
    `Connection: close`. `more`: further headers."""
    known = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
    length = (b"content-length", str(len(body)).encode())
    return [*known, (b"content-type", PROBLEM.encode()), length, (b"connection", b"close"), *more]


def _address(connection: Any) -> str:
    client = getattr(connection, "client", None)
    return client[0] if client else ""


def _waits(connection: Any) -> bool:
    """Whether a connection has no request under way: it is idle, or its next head is incomplete."""
    return isinstance(connection, Patience) and connection.conn.their_state is h11.IDLE


class Patience(H11Protocol):
    """Closes connections on which the head of a request, or the rest of a refused body, takes too long.

    Allows `most` requests under way in all, and `most_each` of one address, so that one client cannot block all others.
    Further requests get 503, except health checks. Idle connections block no client: at the limit, each new connection
    closes the one that has waited longest. One address may have `heads_each` slow heads.
    """

    head_s = 10.0
    most = most_each = 512
    heads_each = 32
    health = frozenset({"/healthz", "/livez", "/ready", "/readyz"})
    waits_since = 0.0
    _is_slow = False
    """The head has taken longer than `_HEAD_TAKES_S`."""
    _deadline: asyncio.TimerHandle | None = None
    _awaited: tuple[str, Any] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waits_since = self.loop.time()
        for most, open_ in ((self.most_each, self._of_this_address()), (self.most, self._open())):
            if len(open_) > most:
                _close_oldest([connection for connection in open_ if connection is not self and _waits(connection)])
        self._watch()

    def handle_events(self) -> None:
        application = self.app
        if self.conn.their_state is h11.IDLE and self._is_crowded():
            self.app = self._only_health
        try:
            super().handle_events()
        finally:
            self.app = application

    def _is_crowded(self) -> bool:
        if len(self.connections) <= min(self.most, self.most_each):
            return False
        busy = [connection for connection in self.connections if connection is not self and not _waits(connection)]
        own = sum(_address(connection) == _address(self) for connection in busy)
        return len(busy) >= self.most or own >= self.most_each

    async def _only_health(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] in self.health:
            await self.app(scope, receive, send)
            return
        body = problem(503, "busy", "too many requests are under way: try again in a moment")
        await send({"type": "http.response.start", "status": 503, "headers": _plain(body, (b"retry-after", b"5"))})
        await send({"type": "http.response.body", "body": body})

    def _open(self) -> list[Any]:
        return [connection for connection in self.connections if not connection.transport.is_closing()]

    def _of_this_address(self) -> list[Any]:
        return [connection for connection in self._open() if _address(connection) == _address(self)]

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # h11's message quotes the request
        body = problem(400, "bad_request", "malformed HTTP request")
        answer = h11.Response(status_code=400, headers=_plain(body), reason=b"Bad Request")
        whole = (answer, h11.Data(data=body), h11.EndOfMessage())
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in whole))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.waits_since = self.loop.time()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._await(("rest", self.cycle), _DISCARD_S)

    def _watch(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self._await(("head", self.cycle), min(_HEAD_TAKES_S, self.head_s))
        elif self._awaited != ("rest", self.cycle):
            self._await(None)

    def _await(self, awaited: tuple[str, Any] | None, within_s: float = 0) -> None:
        """Replace the deadline by one in `within_s` seconds for this part of a request; None: remove it. If the
        connection already waits for the same part, the deadline stays.

        At the deadline the connection closes; for a head, this first deadline only counts it as slow.
        """
        if awaited == self._awaited:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._awaited, self._is_slow = awaited, False
        late = self._head_is_slow if awaited and awaited[0] == "head" else self.transport.close
        self._deadline = self.loop.call_later(within_s, late) if awaited else None

    def _head_is_slow(self) -> None:
        self._is_slow = True
        self._deadline = self.loop.call_later(max(0, self.head_s - _HEAD_TAKES_S), self.transport.close)
        slow = [connection for connection in self._of_this_address() if getattr(connection, "_is_slow", False)]
        if len(slow) > self.heads_each:
            _close_oldest(slow)


def _close_oldest(waiting: list[Patience]) -> None:
    if waiting:
        min(waiting, key=lambda connection: connection.waits_since).transport.abort()


def configuration(app: Any, settings: Exposed, limits: Mapping[str, Any], **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration, with a time-out for each phase of a request. `limits`: fields of `Patience`."""
    defaults: dict[str, Any] = {
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "backlog": BACKLOG,
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
        "ssl_certfile": settings.tls_certificate or None,
        "ssl_keyfile": settings.tls_key or None,
    }
    return uvicorn.Config(app, http=type("Protocol", (Patience,), dict(limits)), **{**defaults, **options})

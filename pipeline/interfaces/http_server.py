"""What our servers have in common: a socket to listen on, an orderly end, and little patience with the silent."""

import asyncio
import ipaddress
import socket
from threading import Event
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipeline.engine.errors import UserError

KEEP_ALIVE_S = 15
_DISCARD_S = 5.0
"""How long the rest of a body that was refused is read, so that the client gets to read why."""
BACKLOG = 512


class PortInUse(UserError):
    """Somebody else listens there."""

    def __init__(self, host: str, port: int, setting: str) -> None:
        super().__init__(
            f"port {port} on {host} is in use: end what listens there, or set {setting}", code="port_in_use"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A socket that listens; `setting` names the port. Raises `PortInUse`, or `UserError` for a foreign address."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address, family=family, backlog=BACKLOG)
        # Connections inherit it. Else a body that follows its head waits 40 ms for the client's acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        if "in use" in str(error).lower():
            raise PortInUse(host, port, setting) from error
        raise UserError(f"nobody can listen on {host} here: {error.strerror or error}", code="usage") from error


class Server(uvicorn.Server):
    """Tells those who wait or stream that it ends, so that they do not keep it."""

    def __init__(self, config: uvicorn.Config, ending: Event) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # Not uvicorn's own, which raises the signal again in the end: who was asked to end has not failed.
        self._ending.set()
        self.force_exit = self.should_exit
        self.should_exit = True


class Patience(H11Protocol):
    """Closes connections on which the head of a request, or the rest of a refused body, does not come to an end."""

    head_s = 10.0
    _deadline: asyncio.TimerHandle | None = None
    _awaited: tuple[str, Any] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._await(("rest", self.cycle), _DISCARD_S)

    def _watch(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self._await(("head", self.cycle), self.head_s)
        elif self._awaited != ("rest", self.cycle):
            self._await(None)

    def _await(self, what: tuple[str, Any] | None, within_s: float = 0) -> None:
        """Begin to wait for this, unless that has begun already; None: for nothing."""
        if what == self._awaited:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._awaited = what
        self._deadline = self.loop.call_later(within_s, self.transport.close) if what else None

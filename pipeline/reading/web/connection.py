"""Connections of HTTP requests: pinned to a checked address, and ended at a fixed time."""

import errno
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpcore2

from pipeline.reading.sandbox.limits import Unwanted, Wanted
from pipeline.reading.web.addresses import Address, AllowPrivate, Lookup, Resolve, check_port, checked

_SLICE_S = 0.5
_T = TypeVar("_T")


class OutOfTime(Exception):
    """The request has used all of its time."""


@dataclass
class Patience:
    """Limits a request to a time (monotonic), also while it waits for the network, and while it is wanted."""

    until: float
    wanted: Wanted
    _ask_at: float = 0.0

    def check(self) -> float:
        """Return the seconds left. Raises `OutOfTime`, or `Unwanted` if `wanted`, called at most twice a second,
        returns False."""
        now = time.monotonic()
        if now >= self.until:
            raise OutOfTime
        if now >= self._ask_at:
            self._ask_at = now + _SLICE_S
            if not self.wanted():
                raise Unwanted("The request is no longer wanted.")
        return self.until - now


class PinnedBackend(httpcore2.NetworkBackend):
    """Opens connections: resolves a name once, checks all of its addresses, and connects to one of them."""

    def __init__(self, patience: Patience, connect_s: float, allow_private: AllowPrivate, resolve: Resolve) -> None:
        self._patience = patience
        self._connect_s = connect_s
        self._allow_private = allow_private
        self._resolve = resolve

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore2.NetworkStream:
        check_port(port)
        lookup = Lookup(self._resolve, host, port)
        while not lookup.done.wait(min(_SLICE_S, self._patience.check())):
            pass
        failure: OSError | None = None
        for address in checked(host, lookup.addresses(host), self._allow_private):
            try:
                return self._connected(address, port)
            except OSError as error:
                failure = error
        raise httpcore2.ConnectError(str(failure))

    def _connected(self, address: Address, port: int) -> "_Stream":
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = _Stream(connection, self._patience)
            code = connection.connect_ex((str(address), port))
            if code == errno.EINPROGRESS:
                stream.wait(select.POLLOUT, self._connect_s)
                code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))  # noqa: TRY301  # closed as after any other error
        except BaseException:
            connection.close()
            raise
        return stream


class _Stream(httpcore2.NetworkStream):
    """A connection that checks the patience twice a second, even while nothing arrives."""

    def __init__(self, connection: socket.socket, patience: Patience) -> None:
        self._connection = connection
        self._patience = patience

    def wait(self, event: int, at_most_s: float | None = None) -> None:
        """Wait until the connection is ready. Raises `OutOfTime`, `Unwanted` or, after `at_most_s`, `TimeoutError`."""
        poll = select.poll()
        poll.register(self._connection, event)
        ends = None if at_most_s is None else time.monotonic() + at_most_s
        while True:
            if poll.poll(min(_SLICE_S, self._patience.check()) * 1000):
                return
            if ends is not None and time.monotonic() > ends:
                raise TimeoutError("no connection in time")

    def _do(self, act: Callable[[], _T], event: int) -> _T:
        while True:
            self._patience.check()
            try:
                return act()
            except (BlockingIOError, InterruptedError):
                self.wait(event)
            except ssl.SSLWantReadError:
                self.wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self.wait(select.POLLOUT)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002  # the patience decides
        try:
            return self._do(lambda: self._connection.recv(max_bytes), select.POLLIN)
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        remaining = memoryview(buffer)
        try:
            while remaining:
                part = remaining[:65536]
                remaining = remaining[self._do(lambda part=part: self._connection.send(part), select.POLLOUT) :]  # type: ignore[misc]
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    def close(self) -> None:
        self._connection.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore2.NetworkStream:
        """Return the connection secured by TLS; check the certificate against the host's name in the URL, not against
        the pinned address."""
        try:
            secured = ssl_context.wrap_socket(
                self._connection, server_hostname=server_hostname, do_handshake_on_connect=False
            )
            stream = _Stream(secured, self._patience)
            try:
                stream._do(secured.do_handshake, select.POLLIN)  # the same class
            except BaseException:
                secured.close()
                raise
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        return stream

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object" and isinstance(self._connection, ssl.SSLSocket):
            return self._connection
        return self._connection if info == "socket" else None

"""A web server that misbehaves: each address is a function of the connection."""

import socket
import threading
from collections.abc import Callable
from typing import Self

Page = Callable[["Request"], None]


class Request:
    """A request, read up to its body. `send` never fails, because clients hang up in many tests."""

    def __init__(self, connection: socket.socket, head: str) -> None:
        self._connection = connection
        self.method, self.target, _ = head.split("\r\n", maxsplit=1)[0].split(" ")
        self.headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])
        }

    def send(self, data: bytes) -> bool:
        """Return whether the client is still connected."""
        try:
            self._connection.sendall(data)
        except OSError:
            return False
        return True

    def wait(self) -> None:
        """Wait until the client hangs up."""
        try:
            while self._connection.recv(4096):
                pass
        except OSError:
            return

    def answer(self, body: bytes = b"", status: str = "200 OK", **headers: str) -> None:
        fields = {"Content-Length": str(len(body)), "Connection": "close"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.send(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)


def html(body: str) -> Page:
    return lambda request: request.answer(body.encode(), Content_Type="text/html; charset=utf-8")


def xml(body: str) -> Page:
    return lambda request: request.answer(body.encode(), Content_Type="application/xml")


def redirect(to: str) -> Page:
    return lambda request: request.answer(status="302 Found", Location=to)


class WebServer:
    """A context manager; `pages` maps paths to handlers. `seen`: the received requests."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._listener = socket.create_server((host, 0))
        self.port = int(self._listener.getsockname()[1])
        self.pages: dict[str, Page] = {}
        self.seen: list[Request] = []
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, name="web-server", daemon=True)

    def url(self, path: str, host: str = "site.test") -> str:
        return f"http://{host}:{self.port}{path}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            head = b""
            while b"\r\n\r\n" not in head:
                try:
                    data = connection.recv(4096)
                except OSError:
                    return
                if not data:
                    return
                head += data
            request = Request(connection, head.split(b"\r\n\r\n")[0].decode("latin-1"))
            self.seen.append(request)
            page = self.pages.get(request.target.partition("?")[0])
            if page is None:
                request.answer(b"nothing here", status="404 Not Found")
            else:
                page(request)
        self._open.discard(connection)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in [self._thread, *self._threads]:
            thread.join(5)

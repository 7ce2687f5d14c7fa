"""The wire of `tests.support.provider_server`: threads, sockets, and the ways in which a reply can go wrong."""

import json
import selectors
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from tests.support.provider_server import ProviderServer, Record, Reply


class Server(ThreadingHTTPServer):
    """Serves hundreds of connections with a thread each. `stop` ends them all."""

    request_queue_size = 1024
    daemon_threads = False  # so that `server_close` waits for them

    def __init__(self, provider: "ProviderServer", port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.provider = provider
        self._connections: set[socket.socket] = set()
        self._stopping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="provider-server", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        with self._lock:
            self._stopping = True
        self.hang_up()
        self.server_close()
        self._thread.join()

    def hang_up(self) -> None:
        """End every connection."""
        with self._lock:
            for connection in self._connections:
                _hang_up(connection)

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)
            if self._stopping:
                _hang_up(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # in some tests clients hang up
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Reads calls from one connection and sends the provider's replies."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # a reply leaves in one piece

    @property
    def provider(self) -> "ProviderServer":
        return cast("Server", self.server).provider

    def setup(self) -> None:
        super().setup()
        cast("Server", self.server).opened(self.connection)

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            cast("Server", self.server).closed(self.connection)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is the base class's)
        """Write no log: the records have everything."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/__stats":
            wanted = parse_qs(url.query).get("records", ["1"]) != ["0"]
            self._send_json(200, self.provider.stats(records=wanted))
        elif url.path == "/v1/models":
            models = self.provider.script.models or ["test-model"]
            self._send_json(200, {"object": "list", "data": [{"id": m, "object": "model"} for m in models]})
        else:
            self._send_json(404, {"error": {"message": "no such path", "code": None}})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(data)
            if self.path == "/__script":
                self.provider.configure(body)
                return self._send_json(200, {"ok": True})
            if self.path in {"/v1/chat/completions", "/v1/embeddings"}:
                key = self.headers.get("Authorization", "").removeprefix("Bearer ")
                return self._answer(*self.provider.arrive(self.path, body, key))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            return self._send_json(400, {"error": {"message": str(error), "code": "invalid_request"}})
        return self._send_json(404, {"error": {"message": "no such path", "code": None}})

    def _answer(self, record: "Record", reply: "Reply") -> None:
        status = 0
        try:
            if self._gone_within(reply.delay_s):
                self.close_connection = True
            elif reply.how == "reply":
                status = reply.status
            else:
                self._misbehave(reply)
        finally:
            # Before the reply: its reader may call again at once, and that must not count as a second call under way.
            self.provider.leave(record, status)
        if status and reply.pieces:
            self._stream(record, reply)
        elif status:
            self._send(reply)

    def _stream(self, record: "Record", reply: "Reply") -> None:
        self.send_response(reply.status)
        own = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        for name, value in (reply.headers | own).items():
            self.send_header(name, value)
        self.end_headers()
        for piece in (*reply.pieces, b""):
            if reply.piece_s and self._gone_within(reply.piece_s):
                self.close_connection = True
                return
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if reply.piece_s:
                self.wfile.flush()
            record.pieces += bool(piece)

    def _send_json(self, status: int, body: object) -> None:
        self._head(status, {"Content-Type": "application/json"}, len(data := json.dumps(body).encode()))
        self.wfile.write(data)

    def _send(self, reply: "Reply") -> None:
        self._head(reply.status, {"Content-Type": "application/json"} | reply.headers, len(reply.body))
        self.wfile.write(reply.body)

    def _head(self, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(length)} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def _misbehave(self, reply: "Reply") -> None:
        self.close_connection = True
        if reply.how == "hang":
            self._gone_within(None)
            return
        if reply.how == "trickle_headers":
            self._trickle(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            return
        self._head(200, {"Content-Type": "application/json"}, 10_000_000)
        if reply.how == "trickle":
            self._trickle(b"")
        else:  # close
            self.wfile.write(reply.body[: len(reply.body) // 2])
            self.wfile.flush()

    def _trickle(self, start: bytes) -> None:
        self.wfile.write(start)
        while not self._gone_within(0.02):
            self.wfile.write(b"x")
            self.wfile.flush()

    def _gone_within(self, seconds: float | None) -> bool:
        """Wait (None: for ever); True as soon as the client hangs up or the server stops."""
        if seconds is not None and seconds <= 0:
            return False
        with selectors.DefaultSelector() as selector:
            # The client sends nothing more, so a readable socket has ended.
            selector.register(self.connection, selectors.EVENT_READ)
            return bool(selector.select(seconds))


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already

"""A real small HTTP server that receives webhooks, answers by its script, and records the requests."""

import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from standardwebhooks.webhooks import Webhook


@dataclass(frozen=True)
class Reply:
    """The answer to one request. `hang`: answer only when the receiver ends."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang: bool = False


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    def verified(self, secret: str) -> dict[str, Any]:
        """Return the message, after the specification's own library has verified its signature. Raises its error."""
        message: dict[str, Any] = Webhook(secret).verify(self.body, self.headers)
        return message

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """A context manager. `replies`: to the next requests by path; `usual` answers all later ones."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.replies: dict[str, deque[Reply]] = {}
        self.usual = Reply()
        self._ending = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                owner.received.append(Received(self.path, headers, body))
                waiting = owner.replies.get(self.path)
                reply = waiting.popleft() if waiting else owner.usual
                if reply.hang:
                    owner._ending.wait(60)
                    return
                self.send_response(reply.status)
                for name, value in {"content-length": str(len(reply.body)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.02), daemon=True)

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def script(self, *replies: Reply, path: str = "/hook") -> None:
        self.replies[path] = deque(replies)

    def at(self, path: str) -> list[Received]:
        return [request for request in self.received if request.path == path]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

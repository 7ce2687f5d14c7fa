"""A scripted gateway: it accepts connections, and the test sends the messages."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve
from wire import DEADLINE_S, File, Message, Peer

BEATS = frozenset({"node_heartbeat"})
PIECES = frozenset({"job_partial"})


class Link(Peer):
    """A node's connection. `registered`: its first message."""

    def __init__(self, connection: ServerConnection) -> None:
        super().__init__(connection, BEATS | PIECES)
        self.path = connection.request.path if connection.request else ""
        self.token = connection.request.headers.get("Authorization", "") if connection.request else ""
        self.registered: Message | None = None

    def welcome(self, **limits: int) -> None:
        """Welcome the node."""
        self.registered = self.expect("node_register")
        limits = {"heartbeat_ms": 5000, "max_message_bytes": 2**24, "max_attachment_bytes": 2**25} | limits
        self.say("welcome", instance_id="script", **limits)

    def assign(
        self, job_id: str, prompt: str, *files: File, attempt: int = 1, capability: str = "text", **body: Any
    ) -> None:
        """Assign a job."""
        self.say(
            "job_assign",
            *files,
            job_id=job_id,
            attempt=attempt,
            capability=capability,
            model="",
            body={"prompt": prompt, **body},
            timeout_ms=60_000,
        )

    def received(self, message: Message, acknowledged: bool = True) -> None:
        """Acknowledge a result."""
        job_id, attempt = message.job
        self.say("result_received", job_id=job_id, attempt=attempt, taken=acknowledged)

    def end(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection with this code."""
        self.connection.close(code, reason)

    def cut(self) -> None:
        """Break the connection without a closing message."""
        self.connection.socket.close()


class ScriptedGateway:
    """Connections in the order of their arrival. `refuse_with`: the answer to handshakes."""

    def __init__(self) -> None:
        self.url = ""
        self.refuse_with: HTTPStatus | None = None
        self._links: queue.Queue[Link] = queue.Queue()
        self.refusals: queue.Queue[HTTPStatus] = queue.Queue()
        self._over = threading.Event()

    def connection(self, deadline_s: float = DEADLINE_S) -> Link:
        """Return the next connection."""
        return self._links.get(timeout=deadline_s)

    def welcome(self, **limits: int) -> Link:
        """Return the next connection after welcoming its node."""
        link = self.connection()
        link.welcome(**limits)
        return link

    def no_connection(self, for_s: float) -> bool:
        """Whether no node connects for this long."""
        try:
            self._links.get(timeout=for_s)
        except queue.Empty:
            return True
        return False

    def _take(self, connection: ServerConnection) -> None:
        link = Link(connection)
        self._links.put(link)
        self._over.wait()

    def _refuse(self, connection: ServerConnection, request: Request) -> Response | None:
        if not self.refuse_with:
            return None
        self.refusals.put(self.refuse_with)
        return connection.respond(self.refuse_with, "no\n")


@contextmanager
def scripted_gateway() -> Iterator[ScriptedGateway]:
    """Run a gateway on a free port."""
    gateway = ScriptedGateway()
    with serve(gateway._take, "127.0.0.1", 0, process_request=gateway._refuse, max_size=2**26) as server:
        gateway.url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield gateway
        finally:
            gateway._over.set()
            server.shutdown()

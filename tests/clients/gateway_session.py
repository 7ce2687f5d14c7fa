"""The gateway of the stack, with tokens for it, sessions, and nodes that a test scripts."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from conftest import HEARTBEAT_MS
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from wire import File, Message, Peer


class Session(Peer):
    """Sends requests and waits for answers."""

    def ask(
        self, request_id: str, prompt: str, *files: File, body: dict[str, object] | None = None, **more: Any
    ) -> None:
        """Send a request."""
        known = {
            "capability": "text",
            "model": "echo",
            "timeout_ms": 30_000,
            "body": {"prompt": prompt, **(body or {})},
        }
        self.say("job_request", *files, **{"request_id": request_id, **known, **more})

    def answer(self) -> Message:
        """Return the next result and skip other messages."""
        return self.until("job_result")[-1]

    def text(self, request_id: str, prompt: str, *files: File, **more: Any) -> str:
        """Send a request; return the text of its answer."""
        self.ask(request_id, prompt, *files, **more)
        return str(self.answer()["result"]["text"])


@dataclass(frozen=True)
class Gateway:
    """The gateway's port, and tokens for it."""

    url: str
    node_token: str
    session_token: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @contextmanager
    def connected(self, path: str, token: str, kind: type[Peer] = Peer) -> Iterator[Any]:
        """Open a connection without sending a message."""
        headers = {"Authorization": f"Bearer {token}"}
        with connect(f"{self.url}{path}", additional_headers=headers, max_size=2**26, close_timeout=2) as connection:
            yield kind(connection)

    @contextmanager
    def session(self, session_id: str = "") -> Iterator[Session]:
        """Open a session."""
        with self.connected("/ws/session", self.session_token, Session) as session:
            session.say("session_open", versions=[1], session_id=session_id or token_hex(16), name="test")
            session.expect("welcome")
            yield session

    @contextmanager
    def node(self, node_id: str, model: str, **more: Any) -> Iterator[Peer]:
        """Connect a node that the test scripts, and that offers one model. It sends its heartbeats itself."""
        with self.connected("/ws/node", self.node_token) as peer:
            register(peer, node_id, model, **more)
            peer.expect("welcome")
            over = threading.Event()
            beats = threading.Thread(target=_beat, args=(peer, over))
            beats.start()
            try:
                yield peer
            finally:
                over.set()
                beats.join()


def _beat(peer: Peer, over: threading.Event) -> None:
    with suppress(ConnectionClosed):
        while not over.wait(HEARTBEAT_MS / 2000):
            peer.say("node_heartbeat")


def register(peer: Peer, node_id: str, model: str, **more: Any) -> None:
    """Return the first message of a node."""
    offers = [{"capability": "text", "models": [model]}]
    peer.say("node_register", **{"versions": [1], "node_id": node_id, "slots": 1, "offers": offers, **more})

"""The gateway of the stack, with tokens for it; sessions that ask, and nodes that do what a test says."""

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
    """Asks, and waits for answers."""

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
        """The next result, whatever comes before it."""
        return self.until("job_result")[-1]

    def text(self, request_id: str, prompt: str, *files: File, **more: Any) -> str:
        """The text that comes back."""
        self.ask(request_id, prompt, *files, **more)
        return str(self.answer()["result"]["text"])


@dataclass(frozen=True)
class Gateway:
    """Where it is, and tokens for it."""

    url: str
    node_token: str
    session_token: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @contextmanager
    def connected(self, path: str, token: str, kind: type[Peer] = Peer) -> Iterator[Any]:
        """A connection on which nothing was said yet."""
        headers = {"Authorization": f"Bearer {token}"}
        with connect(f"{self.url}{path}", additional_headers=headers, max_size=2**26, close_timeout=2) as connection:
            yield kind(connection)

    @contextmanager
    def session(self, session_id: str = "") -> Iterator[Session]:
        """A session that is open."""
        with self.connected("/ws/session", self.session_token, Session) as session:
            session.say("session_open", versions=[1], session_id=session_id or token_hex(16), name="test")
            session.expect("welcome")
            yield session

    @contextmanager
    def node(self, node_id: str, model: str, **more: Any) -> Iterator[Peer]:
        """A node that does what the test says, and offers one model. It says by itself that it is there."""
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
    """What a node says first."""
    offers = [{"capability": "text", "models": [model]}]
    peer.say("node_register", **{"versions": [1], "node_id": node_id, "slots": 1, "offers": offers, **more})

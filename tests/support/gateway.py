"""Gateways for tests: an instance in a thread of this process, and raw connections that speak the protocol to it."""

import asyncio
import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

import uvicorn
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from pipeline.interfaces.gateway.server import config
from pipeline.nodes import tokens
from pipeline.nodes.gateway.instance import Instance
from pipeline.nodes.settings import GatewaySettings
from pipeline.nodes.tokens import TokenKind
from pipeline.storage.context import Context
from tests.support.waiting import wait_until

DEADLINE_S = 60.0
QUICK: dict[str, Any] = {
    "heartbeat_ms": 2000,
    "owner_ttl_seconds": 6,
    "stream_block_ms": 100,
    "cool_down_ms": 1000,
    "node_snapshot": {"presence_ttl_seconds": 6, "refresh_interval_ms": 100},
}
"""Settings with short times, but long enough that no client counts as lost on a busy machine."""


class GatewayThread:
    """A gateway instance in a thread. A context manager, which stops the instance like SIGTERM."""

    def __init__(self, context: Context, instance_id: str = "a", **settings: Any) -> None:
        self.instance = Instance(context, GatewaySettings(**{**QUICK, "instance_id": instance_id, **settings}))
        served = config(self.instance)
        served.host, served.port = "127.0.0.1", 0
        self._server = uvicorn.Server(served)
        self._thread = threading.Thread(target=self._run, name=f"gateway-{instance_id}", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve()

        asyncio.run(serve())

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._server.started, DEADLINE_S, "the gateway serves")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(DEADLINE_S)
        if self._thread.is_alive() and self._loop is not None:
            for task in asyncio.all_tasks(self._loop):
                task.print_stack()
            raise AssertionError("the gateway does not end")

    @property
    def url(self) -> str:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"ws://127.0.0.1:{port}"

    def do(self, work: Any) -> Any:
        """Run a coroutine in the instance's loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)


def token(context: Context, kind: TokenKind, name: str = "test", node_id: str = "") -> str:
    """Create a token, and return its secret."""
    return tokens.create(context, name, kind, node_id=node_id)[0]


@dataclass
class Got:
    """A message, or the end of the connection: then `code` and `reason`."""

    message: dict[str, Any] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    code: int = 0
    reason: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.message[name]

    @property
    def type(self) -> str:
        return str(self.message.get("type", f"closed {self.code}"))


class Wire:
    """A raw WebSocket to a gateway."""

    def __init__(self, url: str, path: str, secret: str) -> None:
        self._whole = threading.Lock()
        """Send a message and its attachments."""
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._socket: ClientConnection = connect(
            url + path, additional_headers=headers, compression=None, max_size=None, proxy=None, close_timeout=1
        ).__enter__()

    def send(self, message: dict[str, Any], *parts: bytes) -> None:
        if parts:
            message = message | {
                "attachments": [{"size": len(part), "name": f"part-{i}"} for i, part in enumerate(parts)]
            }
        with self._whole:
            self.raw(json.dumps(message))
            for part in parts:
                self._socket.send(part)

    def greet(self, message: dict[str, Any]) -> Got:
        """Send the first message, and return the gateway's first message or the end of the connection."""
        with suppress(ConnectionClosed):
            self.send(message)
        return self.receive()

    def raw(self, frame: str | bytes) -> None:
        self._socket.send(frame)

    def receive(self, within_s: float = DEADLINE_S) -> Got:
        """Return the next message, or the end of the connection."""
        try:
            message = json.loads(self._socket.recv(within_s))
            parts = [self._socket.recv(within_s) for _ in message.get("attachments", ())]
        except ConnectionClosed as closed:
            end = closed.rcvd
            return Got(code=end.code if end else 1006, reason=end.reason if end else "")
        return Got(message, [part for part in parts if isinstance(part, bytes)])

    def until(self, *types: str, within_s: float = DEADLINE_S) -> Got:
        """Return the next message of these types, or the end of the connection. Skips other messages."""
        while True:
            got = self.receive(within_s)
            if not got.message or got.type in types:
                return got

    def nothing_comes(self, within_s: float = 0.3) -> bool:
        try:
            self._socket.recv(within_s)
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()

    def drop(self) -> None:
        """Break the connection without a close frame, like a cut cable."""
        self._socket.socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RawNode(Wire):
    """A node whose messages the test sends."""

    def __init__(
        self,
        gateway: str,
        secret: str,
        node_id: str = "n1",
        *,
        slots: int = 1,
        offers: Sequence[dict[str, Any]] = ({"capability": "text", "models": ["m"]},),
        held: Sequence[dict[str, Any]] = (),
        register: bool = True,
        heartbeat_s: float = 0.3,
    ) -> None:
        """`heartbeat_s`: the interval of heartbeats; 0: none."""
        super().__init__(gateway, "/ws/node", secret)
        self.id = node_id
        self._ended = threading.Event()
        if heartbeat_s:
            threading.Thread(target=self._beat, args=(heartbeat_s,), daemon=True).start()
        if register:
            hello = {
                "type": "node_register",
                "v": 1,
                "versions": [1],
                "node_id": node_id,
                "slots": slots,
                "offers": list(offers),
                "held": list(held),
            }
            self.welcome = self.greet(hello)

    def _beat(self, every_s: float) -> None:
        with suppress(ConnectionClosed, OSError):
            while not self._ended.wait(every_s):
                self.send({"type": "node_heartbeat"})

    def close(self) -> None:
        self._ended.set()
        super().close()

    def job(self, within_s: float = DEADLINE_S) -> Got:
        return self.until("job_assign", within_s=within_s)

    def say(self, kind: str, job: Got, **fields: Any) -> None:
        self.send({"type": kind, "job_id": job["job_id"], "attempt": job["attempt"], **fields})

    def answer(self, job: Got, text: str = "done", *parts: bytes) -> None:
        message = {"type": "job_result", "job_id": job["job_id"], "attempt": job["attempt"], "result": {"text": text}}
        self.send(message, *parts)

    def answer_next(self, text: str = "done") -> Got:
        """Do the next job, and return it."""
        job = self.job()
        self.answer(job, text)
        return job


class RawSession(Wire):
    """A session whose messages the test sends."""

    def __init__(self, gateway: str, secret: str, session_id: str = "") -> None:
        super().__init__(gateway, "/ws/session", secret)
        self.id = session_id or uuid4().hex
        self.welcome = self.greet({"type": "session_open", "v": 1, "versions": [1], "session_id": self.id})

    def ask(self, request_id: str = "", *parts: bytes, **fields: Any) -> str:
        """Send a request for text by model `m`, and return its id."""
        request_id = request_id or uuid4().hex
        body = {"prompt": "Say so."}
        request = {"type": "job_request", "request_id": request_id, "capability": "text", "model": "m", "body": body}
        self.send(request | fields, *parts)
        return request_id

    def result(self, within_s: float = DEADLINE_S) -> Got:
        return self.until("job_result", within_s=within_s)

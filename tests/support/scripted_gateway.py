"""A gateway under a test's control: it accepts nodes' connections, and the test sends the messages.

Also nodes for it, in threads of the test's own process, with an executor under the test's control.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeVar

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from pipeline.nodes.client.agent import Agent, AgentOptions
from pipeline.nodes.client.bench import Results
from pipeline.nodes.client.executor import Executor, Parts
from pipeline.nodes.client.link import BackOff, endpoints
from pipeline.nodes.protocol import (
    NODE_PATH,
    Attachment,
    Capability,
    FromNode,
    JobAck,
    JobAssign,
    JobStarted,
    Message,
    NodeCancel,
    NodeHeartbeat,
    NodeRegister,
    NodeResult,
    NodeResultReceived,
    NodeWelcome,
    Offer,
    encode,
    from_node,
    parse,
)
from tests.support.waiting import wait_until

DEADLINE_S = 30.0
TOKEN = "pstn_test-node-0123456789"
File = tuple[str, bytes]
Said = TypeVar("Said", bound=Message)


class NodeLink:
    """A node's connection. `registered`: the node's first message, once `welcome` was called."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        assert connection.request
        self.path = connection.request.path
        self.token = connection.request.headers.get("Authorization", "")
        self.registered: NodeRegister | None = None
        self.parts: list[bytes] = []
        """The attachments of the last message."""

    def next(self, *, beats: bool = False) -> FromNode:
        """Return the next message. Skips heartbeats unless asked for."""
        while True:
            frame = self.connection.recv(DEADLINE_S)
            assert isinstance(frame, str), "a binary frame that no message announced"
            message = parse(frame, from_node)
            assert message is not None, "a type that nodes do not send"
            announced = message.attachments if isinstance(message, NodeResult) else ()
            self.parts = [self._part(about.size) for about in announced]
            if beats or not isinstance(message, NodeHeartbeat):
                return message

    def _part(self, size: int) -> bytes:
        part = self.connection.recv(DEADLINE_S)
        assert isinstance(part, bytes)
        assert len(part) == size
        return part

    def expect(self, kind: type[Said], job_id: str = "", attempt: int = 1) -> Said:
        """Return the next message, which must be of this type (and about this job)."""
        message = self.next()
        assert isinstance(message, kind), message
        if job_id:
            assert (getattr(message, "job_id", ""), getattr(message, "attempt", 0)) == (job_id, attempt)
        return message

    def welcome(self, **changes: Any) -> "NodeLink":
        """Welcome the node."""
        self.registered = self.expect(NodeRegister)
        usual = {"instance_id": "scripted", "heartbeat_ms": 5000, "max_message_bytes": 2**24}
        self.say(NodeWelcome(**{**usual, "max_attachment_bytes": 2**25, **changes}))
        return self

    def assign(
        self,
        job_id: str,
        *files: File,
        attempt: int = 1,
        capability: Capability = Capability.TEXT,
        model: str = "",
        **body: Any,
    ) -> None:
        """Assign a job. `files`: (media type, bytes)."""
        about = tuple(Attachment(media_type=media_type, size=len(data)) for media_type, data in files)
        job = JobAssign(
            job_id=job_id,
            attempt=attempt,
            capability=capability,
            model=model,
            body=body,
            timeout_ms=60_000,
            attachments=about,
        )
        self.say(job, *(data for _, data in files))

    def expect_start(self, job_id: str, attempt: int = 1) -> None:
        """Expect the node to acknowledge and start the job."""
        self.expect(JobAck, job_id, attempt)
        self.expect(JobStarted, job_id, attempt)

    def result(self, job_id: str, attempt: int = 1, *, received: bool = True) -> NodeResult:
        """Return the next message, which must be this job's result, and send `result_received`."""
        result = self.expect(NodeResult, job_id, attempt)
        if received:
            self.received(job_id, attempt)
        return result

    def received(self, job_id: str, attempt: int = 1, *, taken: bool = True) -> None:
        self.say(NodeResultReceived(job_id=job_id, attempt=attempt, taken=taken))

    def cancel(self, job_id: str, attempt: int = 1) -> None:
        self.say(NodeCancel(job_id=job_id, attempt=attempt, reason="test"))

    def say(self, message: Message, *parts: bytes) -> None:
        self.connection.send(encode(message))
        for part in parts:
            self.connection.send(part)

    def junk(self, *frames: str | bytes) -> None:
        for frame in frames:
            self.connection.send(frame)

    def close(self, code: int = 1000, reason: str = "") -> None:
        self.connection.close(code, reason)

    def cut(self) -> None:
        """Break the connection without a close frame."""
        self.connection.socket.close()

    def closed_with(self) -> tuple[int, str]:
        """Wait until the node closes the connection, and return its code and reason. Skips messages."""
        try:
            while True:
                self.connection.recv(DEADLINE_S)
        except ConnectionClosed as error:
            return (error.rcvd.code, error.rcvd.reason) if error.rcvd else (1006, "")


class ScriptedGateway:
    """The gateway with its connections, in order. `refuse_with`: the HTTP status that refuses handshakes."""

    def __init__(self) -> None:
        self.url = ""
        self.refuse_with: HTTPStatus | None = None
        self._links: queue.Queue[NodeLink] = queue.Queue()
        self._over = threading.Event()

    def connection(self) -> NodeLink:
        """Return the next connection."""
        return self._links.get(timeout=DEADLINE_S)

    def welcome(self, **changes: Any) -> NodeLink:
        """Welcome the node of the next connection, and return the connection."""
        return self.connection().welcome(**changes)

    def has_no_connection(self) -> bool:
        """Whether the test has taken every connection."""
        return self._links.empty()

    def _take(self, connection: ServerConnection) -> None:
        self._links.put(NodeLink(connection))
        self._over.wait()

    def _refuse(self, connection: ServerConnection, _: Request) -> Response | None:
        return connection.respond(self.refuse_with, "no\n") if self.refuse_with else None


@contextmanager
def scripted_gateway() -> Iterator[ScriptedGateway]:
    """Serve a gateway on its own port."""
    gateway = ScriptedGateway()
    with serve(
        gateway._take, "127.0.0.1", 0, process_request=gateway._refuse, max_size=2**26, ping_interval=None
    ) as it:
        gateway.url = f"ws://127.0.0.1:{it.socket.getsockname()[1]}"
        thread = threading.Thread(target=it.serve_forever, name="scripted-gateway", daemon=True)
        thread.start()
        try:
            yield gateway
        finally:
            gateway._over.set()
            it.shutdown()
            thread.join(DEADLINE_S)


Deed = Callable[[dict[str, Any], Callable[[str], None]], dict[str, Any]]


class ScriptedExecutor:
    """Answers each job with its own body and attachments, or by its `deed`."""

    def __init__(self) -> None:
        self.offers: tuple[Offer, ...] = (Offer(capability=Capability.TEXT, models=("m",)),)
        self.runs: list[dict[str, Any]] = []
        """Return the bodies of all started jobs."""
        self.deeds: dict[str, Deed] = {}
        self._go = threading.Event()

    def run(
        self,
        capability: Capability,
        model: str,
        body: dict[str, Any],
        attachments: Sequence[tuple[Attachment, bytes]],
        partial: Callable[[str], None],
    ) -> tuple[dict[str, Any], Parts]:
        self.runs.append(body)
        if body.get("wait"):
            assert self._go.wait(DEADLINE_S)
        if deed := self.deeds.get(body.get("deed", "")):
            return deed(body, partial), []
        return {"text": body.get("prompt", ""), "model": model}, list(attachments)

    def go(self) -> None:
        """Let the jobs whose body has `wait` end."""
        self._go.set()


class RunningAgent:
    """A node on an event loop in its own thread. `reports`: the sentences that it reported."""

    def __init__(self, options: AgentOptions, executor: Executor, results: Results | None) -> None:
        self.reports: list[str] = []
        self.error: BaseException | None = None
        self._ready = threading.Event()
        self._made = (options, executor, results)
        self._thread = threading.Thread(target=self._live, name="agent", daemon=True)
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)

    def _live(self) -> None:
        options, executor, results = self._made

        async def live() -> None:
            self.loop = asyncio.get_running_loop()
            self.agent = Agent(options, executor, self.reports.append, results=results, back_off=BackOff(0.02, 0.1))
            self._ready.set()
            await self.agent.run()

        try:
            asyncio.run(live())
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            self.error = error

    def drain(self) -> None:
        self.loop.call_soon_threadsafe(self.agent.drain, "test")

    def stop(self) -> None:
        with suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self.agent.stop)

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the node has ended."""
        wait_until(lambda: self.ended, DEADLINE_S, "the node has ended", last=lambda: self.reports)


@contextmanager
def running_agent(
    *gateways: ScriptedGateway, executor: Executor, results: Results | None = None, **changes: Any
) -> Iterator[RunningAgent]:
    """Run a node of these gateways until the end of the block."""
    urls = endpoints([gateway.url for gateway in gateways], NODE_PATH)
    options = replace(AgentOptions(urls, TOKEN, "desk", name="Desk", slots=2, software="test"), **changes)
    running = RunningAgent(options, executor, results)
    try:
        yield running
    finally:
        running.stop()
        running.wait()

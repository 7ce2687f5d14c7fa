"""A gateway that answers sessions by a script, and records their messages.

Each `job_request` takes the next step of `script`; without one, the answer is the request's own body. Runs on a loop in
its own thread, so that tests with and without asyncio can use it.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from pipeline.engine.errors import UnitError
from pipeline.nodes.client import Session, SessionLimits
from pipeline.nodes.protocol import (
    SESSION_PATH,
    Attachment,
    CloseCode,
    JobAccepted,
    JobError,
    JobRequest,
    Message,
    SessionCancel,
    SessionOpen,
    SessionPartial,
    SessionResult,
    SessionWelcome,
    encode,
    from_session,
    parse,
)
from tests.support.waiting import wait_until

TOKEN = "pstn_test-session-0123456789"


@dataclass
class ReceivedRequest:
    """A request that the gateway received, with the means to answer it. `connection` counts from 1."""

    request: JobRequest
    parts: list[bytes]
    connection: int
    socket: ServerConnection

    async def accept(self) -> None:
        await self.say(JobAccepted(request_id=self.request.request_id, job_id="j", state="CREATED"))

    async def answer(
        self, result: dict[str, Any], parts: Sequence[tuple[str, str, bytes]] = (), attempt: int = 1
    ) -> None:
        """`parts`: (name, media type, bytes)."""
        about = tuple(Attachment(name=name, media_type=kind, size=len(part)) for name, kind, part in parts)
        await self.say(
            SessionResult(
                request_id=self.request.request_id, attempt=attempt, node_id="n", result=result, attachments=about
            ),
            *(part for *_, part in parts),
        )

    async def fail(
        self, code: str, kind: Any = "transient", message: str = "", retry_after_s: float | None = None
    ) -> None:
        error = JobError(code=code, kind=kind, message=message, retry_after_s=retry_after_s)
        await self.say(SessionResult(request_id=self.request.request_id, error=error))

    async def partial(self, attempt: int, text: str) -> None:
        await self.say(SessionPartial(request_id=self.request.request_id, attempt=attempt, text=text))

    async def say(self, message: Message, *parts: bytes) -> None:
        frames: list[str | bytes] = [encode(message), *parts]
        for frame in frames:
            await self.socket.send(frame)

    def cut(self) -> None:
        """Break the connection without a close frame."""
        self.socket.transport.abort()


Step = Callable[[ReceivedRequest], Awaitable[None]]
Opening = Callable[[ServerConnection], Awaitable[None]]


async def echo(received: ReceivedRequest) -> None:
    await received.answer({"echo": received.request.body, "bytes": [len(part) for part in received.parts]})


async def silence(request: ReceivedRequest) -> None:
    """Send no answer."""


async def cut(request: ReceivedRequest) -> None:
    request.cut()


def reply(result: dict[str, Any], *parts: tuple[str, str, bytes]) -> Step:
    return lambda request: request.answer(result, parts)


def refuse(code: str, kind: Any = "transient", message: str = "", retry_after_s: float | None = None) -> Step:
    return lambda request: request.fail(code, kind, message, retry_after_s)


def junk(*frames: str | bytes) -> Step:
    async def send(request: ReceivedRequest) -> None:
        for frame in frames:
            await request.socket.send(frame)

    return send


def close(code: int, reason: str = "") -> Step:
    return lambda request: request.socket.close(code, reason)


@dataclass
class Seen:
    """Everything that the gateway received, in order."""

    opens: list[SessionOpen] = field(default_factory=list)
    requests: list[ReceivedRequest] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    open_now: int = 0


class ScriptedGateway:
    """A context manager. `step` handles a request when `script` is empty; `openings` replace welcomes."""

    def __init__(
        self,
        *steps: Step,
        step: Step = echo,
        openings: Sequence[Opening] = (),
        token: str = TOKEN,
        port: int = 0,
        **welcome: int,
    ) -> None:
        self.script = deque(steps)
        self.step = step
        self.openings = deque(openings)
        self.seen = Seen()
        self._token = token
        self.welcome = SessionWelcome(
            **{
                "instance_id": "scripted",
                "max_message_bytes": 2**20,
                "max_attachment_bytes": 2**22,
                "max_jobs": 256,
            }
            | welcome
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-gateway", daemon=True)
        self._server: Server | None = None
        self.port = port

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def ids(self) -> list[str]:
        """The ids of the received requests."""
        return [received.request.request_id for received in self.seen.requests]

    def wait_for(self, condition: Callable[[], object], description: str, deadline_s: float = 20) -> None:
        wait_until(condition, deadline_s, description, last=lambda: self.seen)

    def do(self, step: Awaitable[None]) -> None:
        """Run a coroutine on the gateway's loop, after a step has ended."""

        async def done() -> None:
            await step

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread.start()

        async def begin() -> None:
            self._server = await serve(
                self._serve, "127.0.0.1", self.port, max_size=2**25, compression=None, ping_interval=None
            )

        asyncio.run_coroutine_threadsafe(begin(), self._loop).result(10)
        assert self._server
        self.port = next(iter(self._server.sockets)).getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            assert self._server
            for socket in list(self._server.connections):
                socket.transport.abort()
            self._server.close()
            await self._server.wait_closed()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _serve(self, socket: ServerConnection) -> None:
        assert socket.request
        self.seen.paths.append(socket.request.path)
        if not socket.request.path.endswith(SESSION_PATH):
            return await socket.close(4404)
        if socket.request.headers.get("Authorization") != f"Bearer {self._token}":
            return await socket.close(CloseCode.UNAUTHORIZED, "unknown token")
        self.seen.open_now += 1
        try:
            await self._talk(socket)
        except ConnectionClosed:
            pass
        finally:
            self.seen.open_now -= 1

    async def _talk(self, socket: ServerConnection) -> None:
        opened = parse(await socket.recv(), from_session)
        assert isinstance(opened, SessionOpen)
        self.seen.opens.append(opened)
        connection = len(self.seen.opens)
        if self.openings:
            await self.openings.popleft()(socket)
        else:
            await socket.send(encode(self.welcome))
        while True:
            message = parse(await socket.recv(), from_session)
            if isinstance(message, SessionCancel):
                self.seen.cancels.append(message.request_id)
            elif isinstance(message, JobRequest):
                parts = [await socket.recv(decode=False) for _ in message.attachments]
                received = ReceivedRequest(message, parts, connection, socket)
                self.seen.requests.append(received)
                await (self.script.popleft() if self.script else self.step)(received)


FAST = SessionLimits(back_off_s=(0.01, 0.05))


def run(urls: str, talk: Callable[[Session], Awaitable[Any]], limits: SessionLimits = FAST, token: str = TOKEN) -> Any:
    async def main() -> Any:
        async with Session(urls, token, limits=limits) as session:
            return await talk(session)

    return asyncio.run(main())


async def error_of(reply: Awaitable[object]) -> UnitError:
    with pytest.raises(UnitError) as caught:
        await reply
    return caught.value


async def seen(gateway: ScriptedGateway, condition: Callable[[], object], description: str) -> None:
    await asyncio.to_thread(gateway.wait_for, condition, description)

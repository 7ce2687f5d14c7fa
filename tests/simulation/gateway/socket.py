"""A WebSocket between a simulated client and a gateway. Frames keep their order, may be late, or may be lost."""

import asyncio
from collections import deque
from typing import Any

from starlette.websockets import WebSocketDisconnect, WebSocketState

from tests.simulation.gateway.loop import LoopWorld


class Gone(Exception):
    """The connection has ended."""


class _Way:
    """One direction of a connection."""

    def __init__(self, world: LoopWorld) -> None:
        self._world = world
        self._arrived: deque[Any] = deque()
        self._due_s = 0.0
        self._reader: asyncio.Future[None] | None = None
        self.closed = False

    def put(self, frame: Any) -> None:
        """Send a frame, which arrives after those before it."""
        world = self._world
        self._due_s = max(self._due_s + 1e-6, world.loop.time() + world.rng.uniform(0.0005, 0.005))
        world.later(self._due_s - world.loop.time(), lambda: self._arrive(frame))

    def _arrive(self, frame: Any) -> None:
        if not self.closed:
            self._arrived.append(frame)
            self.wake()

    def wake(self) -> None:
        if self._reader and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> Any:
        """Return the next frame. Raises `Gone`."""
        while not self._arrived:
            if self.closed:
                raise Gone
            self._reader = self._world.loop.create_future()
            await self._reader
        return self._arrived.popleft()


class Socket:
    """The gateway's side, with the parts of Starlette's `WebSocket` that it uses."""

    def __init__(self, world: LoopWorld, token: str) -> None:
        self.scope: dict[str, Any] = {}
        self.headers = {"authorization": f"Bearer {token}"}
        self.client_state = self.application_state = WebSocketState.CONNECTED
        self._world = world
        self._in, self._out = _Way(world), _Way(world)

    async def accept(self) -> None:
        """Accept the connection."""

    async def receive(self) -> dict[str, Any]:
        try:
            return {"type": "websocket.receive", "text": await self._in.get()}
        except Gone:
            self.client_state = WebSocketState.DISCONNECTED
            return {"type": "websocket.disconnect"}

    async def send_text(self, text: str) -> None:
        if self._out.closed:
            raise WebSocketDisconnect
        self._out.put(text)

    async def send_bytes(self, _: bytes) -> None:
        raise AssertionError("the simulation sends no attachments")

    async def close(self, code: int, reason: str) -> None:
        self.application_state = WebSocketState.DISCONNECTED
        self._world.later(0.006, self.cut)

    # The client's side

    def say(self, text: str) -> None:
        """Send a client's frame, which is lost if the connection is cut."""
        if not self._in.closed:
            self._in.put(text)

    async def heard(self) -> str:
        """Return the next frame for the client. Raises `Gone`."""
        frame: str = await self._out.get()
        return frame

    def cut(self) -> None:
        """Cut the connection. Both sides notice."""
        for way in (self._in, self._out):
            way.closed = True
            way.wake()

"""Clients of gateways. Each connects to any living instance, loses its connection, and reconnects."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pipeline.nodes.protocol import Message, encode
from tests.simulation.gateway.loop import Host
from tests.simulation.gateway.socket import Gone, Socket

if TYPE_CHECKING:
    from tests.simulation.gateway.fleet import Fleet


class Client:
    """A process outside of the gateway, with one connection at a time."""

    path = ""
    """`node` or `session`: the endpoint."""

    def __init__(self, fleet: "Fleet", name: str, token: str) -> None:
        self.fleet, self.world, self.name, self.token = fleet, fleet.world, name, token
        self.rng = fleet.world.rng
        self.host = Host(name)
        self.socket: Socket | None = None

    def live(self) -> None:
        self.act(self._live())

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.01, 0.3))
            if (gateway := self.fleet.some_gateway()) is None:
                continue
            self.world.note("connects", to=gateway.host.id)
            self.socket = gateway.connect(self.path, self.token)
            try:
                await self.begin()
                while True:
                    self.hear(json.loads(await self.socket.heard()))
            except Gone:
                self.ended()

    def say(self, message: Message) -> None:
        if self.socket and self.host.alive:
            self.socket.say(encode(message))

    async def begin(self) -> None:
        """Send the first messages."""

    def hear(self, message: dict[str, Any]) -> None:
        """Handle a message."""

    def ended(self) -> None:
        """Handle the end of the connection."""

    def cut(self) -> None:
        if self.socket:
            self.socket.cut()

    def act(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine in the background, as this process. Its exception fails the seed."""
        task = self.world.start(self.host, work)
        task.add_done_callback(self._check)
        return task

    def _check(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.world.fail(error)

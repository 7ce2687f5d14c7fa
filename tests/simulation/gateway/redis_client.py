"""The Redis client of a simulated process. Commands may be slow, fail, or be sent twice, and the sender may die."""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.simulation.gateway.loop import Host, LoopWorld
from tests.simulation.gateway.server import Command, Server

_SAME = frozenset(
    {
        "job_create",
        "job_join",
        "job_dispatch",
        "job_step",
        "job_finish",
        "job_retry",
        "job_adopt",
        "job_release",
        "request_take_over",
        "slot_reserve",
        "owner_renew",
        "slot_dropped",
        "model_missing",
    }
)
"""Scripts that give the same answer when repeated immediately."""


class HostRedis(Redis):
    """The client that a gateway's store uses."""

    def __init__(self, world: LoopWorld, host: Host, server: Server, names: dict[str, str]) -> None:
        self.world, self.host, self.server = world, host, server
        self._names = names
        self.direct = False
        """Sends commands without delays or faults."""

    def __del__(self, *_: Any, **__: Any) -> None:
        """Do nothing: the client has no connection."""

    async def aclose(self, *_: Any) -> None:
        """Do nothing: the client has no connection."""

    def pipeline(self, *_: Any, **__: Any) -> Any:
        return _Pipeline(self)

    async def execute_command(self, *command: Any, **_: Any) -> Any:
        if command[0] == "XREADGROUP":
            await self._travel("before", command)
            entries = await self.server.read(self.host, command)
            await self._travel("after", command)
            return entries
        (answer,) = await self.send([command])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers of all commands, errors among them."""
        world, first = self.world, commands[0]
        if self.direct:
            return self.server.run(self.host, commands)
        await self._travel("before", first)
        if world.chance(world.faults.redis_error):
            world.note("redis fails", command=self._name(first))
            raise RedisConnectionError("the connection is lost")
        answers = self.server.run(self.host, commands)
        if world.chance(world.faults.repeat):
            answers = self._again(commands, answers)
        if world.chance(world.faults.repeat_late):
            # The first copy is delayed, and arrives after the sender has continued.
            world.later(world.rng.expovariate(1 / 0.3), lambda: self._late(commands))
        if world.chance(world.faults.answer_lost):
            world.note("the answer is lost", command=self._name(first))
            raise RedisConnectionError("the answer is lost")
        await self._travel("after", first)
        return answers

    def _again(self, commands: Sequence[Command], before: list[Any]) -> list[Any]:
        self.world.note("redis repeats", command=self._name(commands[0]))
        answers = self.server.run(self.host, commands)
        for command, first, second in zip(commands, before, answers, strict=True):
            name = self._name(command)
            if name == "job_finish" and first[0]:  # the third is `repeated`, and Redis may reorder a row's fields
                first, second = [_row(first[0]), first[1]], [_row(second[0]), second[1]]  # noqa: PLW2901
            if name in _SAME and len(commands) == 1 and first != second:
                self.world.fail(f"{name} repeated with the same arguments gives {second}, before {first}")
        return answers

    def _late(self, commands: Sequence[Command]) -> None:
        if not self.world.calm:
            self.world.note("a copy arrives late", command=self._name(commands[0]))
            self.server.run(None, commands)

    def _name(self, command: Command) -> str:
        return self._names.get(command[1], "?") if command[0] == "EVALSHA" else str(command[0])

    async def _travel(self, where: str, command: Command) -> None:
        world, faults = self.world, self.world.faults
        if world.loop.ending or not self.host.alive:
            raise asyncio.CancelledError
        if self.host.mortal and world.chance(faults.kill):
            world.note("dies", where=f"{where} {self._name(command)}")
            world.kill(self.host)
            await asyncio.sleep(0)  # a dead process takes no further step
        seconds = world.rng.uniform(0.0001, 0.001)
        if world.chance(faults.pause):
            seconds = world.rng.expovariate(1 / world.rng.choice((0.02, 0.3, 1.5)))
        await asyncio.sleep(seconds)


class _Pipeline:
    def __init__(self, owner: HostRedis) -> None:
        self._owner = owner
        self._commands: list[Command] = []

    def execute_command(self, *command: Any) -> None:
        self._commands.append(command)

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        return await self._owner.send(self._commands)


def _row(pairs: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))

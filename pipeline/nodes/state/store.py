"""The gateway's Redis: one server or a cluster, with the same commands and scripts."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from typing import Any, Self

from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import NoScriptError

from pipeline.engine.connection import connect_async, connect_cluster
from pipeline.engine.leases import script
from pipeline.nodes.settings import GatewaySettings
from pipeline.nodes.state.keys import Keys

Part = str | int | float | bytes
Command = tuple[Part, ...]
AT_ONCE = 64
"""Commands under way at once; further ones wait here. Without a limit, each would open a connection of its own."""
_PACKAGE = "pipeline.nodes.state"
_texts: dict[Part, str] = {}
"""Of the scripts that were called, by SHA1."""


@cache
def _sha(name: str) -> str:
    text = script("lib", _PACKAGE) + script(name, _PACKAGE)
    digest = sha1(text.encode()).hexdigest()  # noqa: S324  # Redis names scripts so
    _texts[digest] = text
    return digest


def call(name: str, keys: Sequence[str], args: Sequence[Part] = ()) -> Command:
    """The command that runs `lua/{name}.lua`, for `Store.batch`."""
    return ("EVALSHA", _sha(name), len(keys), *keys, *args)


class Store:
    """Commands and scripts, counted. Answers are bytes. Raises `RedisError` when Redis is away for longer."""

    def __init__(self, settings: GatewaySettings, own_url: str) -> None:
        """`own_url`: Penstock's own Redis, for a gateway that has none of its own."""
        where = settings.redis
        self.settings = settings
        self.keys = Keys(where.key_prefix)
        self.redis: Redis | RedisCluster = (
            connect_cluster(where.cluster_urls) if where.mode == "cluster" else connect_async(where.url or own_url)
        )
        self.ops: Counter[tuple[str, str]] = Counter()
        """By what was done, and `ok` or `error`."""
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def run(self, name: str, keys: Sequence[str], args: Sequence[Part] = ()) -> Any:
        """Run `lua/{name}.lua`: one atomic act on keys of one hash tag."""
        (answer,) = await self._counted(name, [call(name, keys, args)])
        return answer

    async def do(self, *command: Part) -> Any:
        """One command."""
        (answer,) = await self._counted(str(command[0]).lower(), [command])
        return answer

    async def batch(self, commands: Sequence[Command], op: str = "batch") -> list[Any]:
        """Commands on any keys, each with one key or one hash tag, in one go; not atomic. Raises the first error."""
        return await self._counted(op, commands) if commands else []

    async def read_blocking(self, *command: Part) -> Any:
        """A command that waits at the server; it takes nobody's turn."""
        try:
            await self._ready()
            answer = await self.redis.execute_command(*command)
        except RedisError:
            self.ops[str(command[0]).lower(), "error"] += 1
            raise
        self.ops[str(command[0]).lower(), "ok"] += 1
        return answer

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of any number of keys, in their order."""
        if not keys:
            return []
        if isinstance(self.redis, Redis):
            return list(await self.do("MGET", *keys))
        return await self.batch([("GET", key) for key in keys], "mget")

    async def now_ms(self) -> int:
        """The server's time."""
        return int(await self.run("now", [self.keys.schedulers]))

    async def _counted(self, op: str, commands: Sequence[Command]) -> list[Any]:
        try:
            async with self._at_once:
                answers = await self._send(commands)
        except RedisError:
            self.ops[op, "error"] += 1
            raise
        self.ops[op, "ok"] += 1
        return answers

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        await self._ready()
        answers = await self._pipelined(commands) if len(commands) > 1 else [await self._one(commands[0])]
        for place, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                answers[place] = await self._one(commands[place])
            elif isinstance(answer, Exception):
                raise answer
        return answers

    async def _one(self, command: Command) -> Any:
        try:
            return await self.redis.execute_command(*command)
        except NoScriptError:
            return await self.redis.execute_command("EVAL", _texts[command[1]], *command[2:])

    async def _pipelined(self, commands: Sequence[Command]) -> list[Any]:
        pipe = self.redis.pipeline() if isinstance(self.redis, RedisCluster) else self.redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return list(await pipe.execute(raise_on_error=False))

    async def _ready(self) -> None:
        if isinstance(self.redis, RedisCluster):
            await self.redis.initialize()

    async def close(self) -> None:
        """Leave no connection behind."""
        await self.redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

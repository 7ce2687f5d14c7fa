"""The gateway's Redis: one server or a cluster, with the same commands and scripts."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from pipeline.engine.connection import connect_async, connect_cluster
from pipeline.nodes.settings import GatewaySettings
from pipeline.nodes.state.keys import Keys
from pipeline.nodes.state.sender import Command, Part, Sender, call


class Store:
    """Sends commands and scripts, and counts them. Answers are bytes. Raises `RedisError` if retries fail as well."""

    def __init__(self, settings: GatewaySettings, own_url: str) -> None:
        """`own_url`: Penstock's own Redis, used if the settings name no Redis for the gateway."""
        redis = settings.redis
        self.settings = settings
        self.keys = Keys(redis.key_prefix)
        self.redis: Redis | RedisCluster = (
            connect_cluster(redis.cluster_urls) if redis.mode == "cluster" else connect_async(redis.url or own_url)
        )
        self.ops: Counter[tuple[str, str]] = Counter()
        """Counts by operation and outcome, `ok` or `error`."""
        self._sender = Sender(self.redis)

    async def run(self, name: str, keys: Sequence[str], args: Sequence[Part] = ()) -> Any:
        """Run the script `lua/{name}.lua` in one atomic step, and return its answer. All keys must have one hash
        tag."""
        (answer,) = await self._counted(name, [call(name, keys, args)])
        return answer

    async def do(self, *command: Part) -> Any:
        """Send one command, and return its answer."""
        (answer,) = await self._counted(str(command[0]).lower(), [command])
        return answer

    async def batch(self, commands: Sequence[Command], op: str = "batch") -> list[Any]:
        """Send commands together, each with one key or one hash tag, and return their answers in order. Not atomic: the
        others take effect although one fails. Raises the first error."""
        return await self._counted(op, commands) if commands else []

    async def read_blocking(self, *command: Part) -> Any:
        """Send a command that blocks at the server, on a connection of its own."""
        try:
            if isinstance(self.redis, RedisCluster):
                await self.redis.initialize()
            answer = await self.redis.execute_command(*command)
        except RedisError:
            self.ops[str(command[0]).lower(), "error"] += 1
            raise
        self.ops[str(command[0]).lower(), "ok"] += 1
        return answer

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of these keys, in their order; None for an absent key."""
        if not keys:
            return []
        if isinstance(self.redis, Redis):
            return list(await self.do("MGET", *keys))
        return await self.batch([("GET", key) for key in keys], "mget")

    async def now_ms(self) -> int:
        """Return the time of the Redis server, in ms since the epoch."""
        return int(await self.run("now", [self.keys.schedulers]))

    async def _counted(self, op: str, commands: Sequence[Command]) -> list[Any]:
        try:
            answers = await self._sender.send(commands)
            for answer in answers:
                if isinstance(answer, RedisError):
                    raise answer
        except RedisError:
            self.ops[op, "error"] += 1
            raise
        self.ops[op, "ok"] += 1
        return answers

    async def close(self) -> None:
        """Close all connections."""
        await self._sender.close()
        await self.redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

"""How commands get to Redis: few at once, and what comes meanwhile goes together."""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import NoScriptError, ResponseError

from pipeline.engine.leases import script

Part = str | int | float | bytes
Command = tuple[Part, ...]
ABREAST = 2
"""Sendings to one server at once. What comes meanwhile waits, and is one sending: the busier, the less each costs."""
TOGETHER = 500
"""Commands of one such sending at most, or those of one caller."""
CLUSTER_AT_ONCE = 64
"""Sendings to a cluster at once. They do not go together: one server that is away would hold up what is for others."""
_PACKAGE = "pipeline.nodes.state"
_texts: dict[Part, str] = {}
"""Of the scripts that were called, by SHA1."""
_Waiting = tuple[Sequence[Command], "asyncio.Future[list[Any]]"]


@cache
def _sha(name: str) -> str:
    text = script("lib", _PACKAGE) + script(name, _PACKAGE)
    digest = sha1(text.encode()).hexdigest()  # noqa: S324  # Redis names scripts so
    _texts[digest] = text
    return digest


def call(name: str, keys: Sequence[str], args: Sequence[Part] = ()) -> Command:
    """The command that runs `lua/{name}.lua`."""
    return ("EVALSHA", _sha(name), len(keys), *keys, *args)


class Sender:
    """Sends commands of any number of coroutines."""

    def __init__(self, redis: Redis | RedisCluster) -> None:
        self._redis = redis
        self._cluster_turns = asyncio.Semaphore(CLUSTER_AT_ONCE)
        self._under_way = 0
        self._waiting: deque[_Waiting] = deque()
        self._sendings: set[asyncio.Task[None]] = set()

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Their answers; an error of a command takes the place of its answer.

        Each has one key, or keys of one hash tag. They go in one sending, but others' may come between them. Raises
        `RedisError` if Redis is away.
        """
        if isinstance(self._redis, RedisCluster):
            async with self._cluster_turns:
                await self._redis.initialize()
                return await self._answers(commands)
        if self._under_way >= ABREAST:
            answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            self._waiting.append((commands, answers))
            return await answers
        self._under_way += 1
        try:
            return await self._answers(commands)
        finally:
            self._ended()

    async def close(self) -> None:
        """Return when nothing is under way."""
        while self._sendings:
            await asyncio.wait(self._sendings)

    def _ended(self) -> None:
        """A sending has ended: what came meanwhile goes together."""
        self._under_way -= 1
        together: list[_Waiting] = []
        room = TOGETHER
        while self._waiting and (not together or len(self._waiting[0][0]) <= room):
            one = self._waiting.popleft()
            if not one[1].done():  # else nobody waits for it any more
                together.append(one)
                room -= len(one[0])
        if together:
            self._under_way += 1
            sending = asyncio.create_task(self._send_together(together))
            self._sendings.add(sending)
            sending.add_done_callback(self._sendings.discard)

    async def _send_together(self, together: Sequence[_Waiting]) -> None:
        try:
            answers = await self._answers([command for commands, _ in together for command in commands])
        except BaseException as error:
            for _, future in together:
                if not future.done():
                    future.set_exception(error) if isinstance(error, Exception) else future.cancel()
            if not isinstance(error, Exception):
                raise
        else:
            begin = 0
            for commands, future in together:
                if not future.done():
                    future.set_result(answers[begin : begin + len(commands)])
                begin += len(commands)
        finally:
            self._ended()

    async def _answers(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) == 1:
            return [await self._answer(commands[0])]
        redis = self._redis
        pipe = redis.pipeline() if isinstance(redis, RedisCluster) else redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        answers = list(await pipe.execute(raise_on_error=False))
        for place, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                answers[place] = await self._answer(commands[place])
        return answers

    async def _answer(self, command: Command) -> Any:
        try:
            return await self._redis.execute_command(*command)
        except NoScriptError:
            return await self._answer(("EVAL", _texts[command[1]], *command[2:]))
        except ResponseError as error:
            return error

"""Sending commands to Redis: few batches at once, and the commands that wait form the next batch."""

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
MAX_BATCHES = 2
"""Concurrent batches to one server. Waiting commands form one batch, so that a command costs less under load."""
BATCH_SIZE = 500
"""The most commands in a batch, unless one caller sends more."""
CLUSTER_CONCURRENCY = 64
"""Concurrent calls to a cluster. They are not batched: one failed server would delay commands for the others."""
_PACKAGE = "pipeline.nodes.state"
_texts: dict[Part, str] = {}
"""The text of each script that was called, by SHA1."""
_Waiting = tuple[Sequence[Command], "asyncio.Future[list[Any]]"]


@cache
def _sha(name: str) -> str:
    text = script("lib", _PACKAGE) + script(name, _PACKAGE)
    digest = sha1(text.encode()).hexdigest()  # noqa: S324  # Redis names scripts by SHA1
    _texts[digest] = text
    return digest


def call(name: str, keys: Sequence[str], args: Sequence[Part] = ()) -> Command:
    """Return the command that runs `lua/{name}.lua`."""
    return ("EVALSHA", _sha(name), len(keys), *keys, *args)


class Sender:
    """Sends the commands of any number of coroutines."""

    def __init__(self, redis: Redis | RedisCluster) -> None:
        self._redis = redis
        self._cluster_turns = asyncio.Semaphore(CLUSTER_CONCURRENCY)
        self._active = 0
        self._waiting: deque[_Waiting] = deque()
        self._batches: set[asyncio.Task[None]] = set()

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Return the commands' answers; a failed command's error takes the place of its answer.

        Each command has one key, or keys of one hash tag. All go in one batch, which is not atomic. Raises
        `RedisError` if Redis is away.
        """
        if isinstance(self._redis, RedisCluster):
            async with self._cluster_turns:
                await self._redis.initialize()
                return await self._answers(commands)
        if self._active >= MAX_BATCHES:
            answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            self._waiting.append((commands, answers))
            return await answers
        self._active += 1
        try:
            return await self._answers(commands)
        finally:
            self._start_next()

    async def close(self) -> None:
        """Wait until all batches have ended."""
        while self._batches:
            await asyncio.wait(self._batches)

    def _start_next(self) -> None:
        """A batch has ended: send the waiting commands as the next batch."""
        self._active -= 1
        batch: list[_Waiting] = []
        room = BATCH_SIZE
        while self._waiting and (not batch or len(self._waiting[0][0]) <= room):
            commands, answers = self._waiting.popleft()
            if not answers.done():  # skip cancelled callers
                batch.append((commands, answers))
                room -= len(commands)
        if batch:
            self._active += 1
            task = asyncio.create_task(self._send_batch(batch))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)

    async def _send_batch(self, batch: Sequence[_Waiting]) -> None:
        try:
            answers = await self._answers([command for commands, _ in batch for command in commands])
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error) if isinstance(error, Exception) else future.cancel()
            if not isinstance(error, Exception):
                raise
        else:
            offset = 0
            for commands, future in batch:
                if not future.done():
                    future.set_result(answers[offset : offset + len(commands)])
                offset += len(commands)
        finally:
            self._start_next()

    async def _answers(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) == 1:
            return [await self._answer(commands[0])]
        redis = self._redis
        pipe = redis.pipeline() if isinstance(redis, RedisCluster) else redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        answers = list(await pipe.execute(raise_on_error=False))
        for index, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                answers[index] = await self._answer(commands[index])
        return answers

    async def _answer(self, command: Command) -> Any:
        try:
            return await self._redis.execute_command(*command)
        except NoScriptError:
            return await self._answer(("EVAL", _texts[command[1]], *command[2:]))
        except ResponseError as error:
            return error

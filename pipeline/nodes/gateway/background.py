"""Background work of an instance: single tasks, and loops that run until the instance stops."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from redis import RedisError

log = structlog.get_logger(__name__)
AFTER_FAILURE_S = 0.5
Spawn = Callable[[Coroutine[Any, Any, Any]], None]


class Background:
    """The tasks and loops of one instance."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loops: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start `work` as a task and return at once. Errors are only logged: the regular checks repeat what a lost
        Redis prevented."""

        async def guarded() -> None:
            try:
                await work
            except RedisError as error:
                log.warning("gateway.redis", error=type(error).__name__)
            except Exception:
                log.exception("gateway.failed")

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def repeat(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        """Start a loop that calls `work`, with a pause of `seconds` after each call. Errors are logged, and the loop
        goes on."""

        async def repeated() -> None:
            while True:
                try:
                    await work()
                except Exception as error:
                    if isinstance(error, RedisError):
                        log.warning("gateway.redis", doing=work.__name__, error=type(error).__name__)
                    else:
                        log.exception("gateway.failed", doing=work.__name__)
                    await asyncio.sleep(AFTER_FAILURE_S)
                await asyncio.sleep(seconds)

        self._loops.add(asyncio.create_task(repeated()))

    async def stop(self) -> None:
        """Cancel the loops, and wait up to 2 s for the tasks."""
        loops = self._loops
        while loops:  # libraries sometimes mistake a cancellation for a time-out of their own, so cancel again
            for task in loops:
                task.cancel()
            _, loops = await asyncio.wait(loops, timeout=1)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2)

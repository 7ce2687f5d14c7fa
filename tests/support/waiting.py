"""Waiting for a condition with a deadline: tests never sleep and hope."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")
_STEP_S = 0.02


class Overdue(AssertionError):
    """The condition did not become true before the deadline."""


def wait_until(
    condition: Callable[[], Result], deadline_s: float, description: str, *, last: Callable[[], object] | None = None
) -> Result:
    """Call `condition` until it returns a true value, and return that. Raises `Overdue` after `deadline_s` seconds.

    `last` returns the current state, for the message.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            state = f"; now: {last()}" if last else ""
            raise Overdue(f"after {deadline_s:g} s still not: {description}{state}")
        time.sleep(_STEP_S)


async def until(condition: Callable[[], Awaitable[Result]], deadline_s: float, description: str) -> Result:
    """Like `wait_until`, in a coroutine."""
    deadline = time.monotonic() + deadline_s
    while True:
        result = await condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise Overdue(f"after {deadline_s:g} s still not: {description}")
        await asyncio.sleep(_STEP_S)

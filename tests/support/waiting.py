"""Waiting for a condition with a deadline: tests never sleep and hope."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Found = TypeVar("Found")
_STEP_S = 0.02


class Overdue(AssertionError):
    """What was waited for did not come about."""


def wait_until(
    condition: Callable[[], Found], deadline_s: float, what: str, *, last: Callable[[], object] | None = None
) -> Found:
    """Ask until `condition` gives something true, and return that; raise `Overdue` after `deadline_s` seconds.

    `last` is asked for a description of how things stand, for the message.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            state = f"; now: {last()}" if last else ""
            raise Overdue(f"after {deadline_s:g} s still not: {what}{state}")
        time.sleep(_STEP_S)


async def until(condition: Callable[[], Awaitable[Found]], deadline_s: float, what: str) -> Found:
    """Like `wait_until`, in a coroutine."""
    deadline = time.monotonic() + deadline_s
    while True:
        found = await condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Overdue(f"after {deadline_s:g} s still not: {what}")
        await asyncio.sleep(_STEP_S)

"""Long polls: an answer that waits until there is nothing more to wait for, without holding a thread meanwhile."""

import time
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request

Found = TypeVar("Found")
MAX_WAITING = 100
"""Requests that wait at the same time; further ones are answered at once."""
_FIRST_LOOK_S, _LONGEST_S = 0.05, 0.5


async def wait_for(
    request: Request, look: Callable[[], Found], settled: Callable[[Found], bool], wait_s: float
) -> Found:
    """What `look` gives as soon as that is `settled`, or after `wait_s` seconds, or when the server or caller ends.

    `look` is called in a thread, again and again: it must be cheap.
    """
    state = request.app.state
    found = await run_sync(look)
    if wait_s <= 0 or getattr(state, "waiting", 0) >= MAX_WAITING:
        return found
    deadline, pause_s = time.monotonic() + wait_s, _FIRST_LOOK_S
    state.waiting = getattr(state, "waiting", 0) + 1
    try:
        while not settled(found) and not state.ending.is_set() and (left_s := deadline - time.monotonic()) > 0:
            await anyio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, _LONGEST_S)
            if await request.is_disconnected():
                break
            found = await run_sync(look)
    finally:
        state.waiting -= 1
    return found

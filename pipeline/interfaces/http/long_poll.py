"""Long polls: an answer that waits until there is nothing more to wait for, without holding a thread meanwhile."""

import time
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync

from pipeline.operations.caller import Caller
from pipeline.operations.quotas import AtOnce, TooManyAtOnce

Found = TypeVar("Found")
WAITS = AtOnce(100, 80, "requests that wait")
"""Further ones are answered at once."""
_FIRST_LOOK_S, _LONGEST_S = 0.05, 0.5


async def wait_for(caller: Caller, look: Callable[[], Found], settled: Callable[[Found], bool], wait_s: float) -> Found:
    """What `look` gives as soon as that is `settled`, or after `wait_s` seconds, or when the server or caller ends.

    `look` is called in a thread, again and again: it must be cheap.
    """
    found = await run_sync(look)
    if wait_s <= 0:
        return found
    try:
        with WAITS.one(caller.id):
            return await _wait(caller, look, settled, wait_s, found)
    except TooManyAtOnce:
        return found


async def _wait(
    caller: Caller, look: Callable[[], Found], settled: Callable[[Found], bool], wait_s: float, found: Found
) -> Found:
    deadline, pause_s = time.monotonic() + wait_s, _FIRST_LOOK_S
    while not settled(found) and caller.goes_on() and (left_s := deadline - time.monotonic()) > 0:
        await anyio.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, _LONGEST_S)
        if await caller.is_gone():
            break
        found = await run_sync(look)
    return found

"""Long polls: an answer that waits until the work has ended, without holding a thread."""

import time
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync

from pipeline.operations.caller import Caller
from pipeline.operations.quotas import AtOnce, TooManyAtOnce

State = TypeVar("State")
WAITS = AtOnce(100, "requests that wait")
"""Further requests get the present state at once."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5


async def wait_for(caller: Caller, read: Callable[[], State], settled: Callable[[State], bool], wait_s: float) -> State:
    """Return the state of `read` once it is `settled`, `wait_s` seconds have passed, the client disconnects or the
    server shuts down.

    Without waiting, returns the present state if `wait_s` is 0 or too many requests wait. A thread calls `read` up to
    twenty times a second, so it must be cheap.
    """
    state = await run_sync(read)
    if wait_s <= 0:
        return state
    try:
        with WAITS.one(caller.id):
            return await _wait(caller, read, settled, wait_s, state)
    except TooManyAtOnce:
        return state


async def _wait(
    caller: Caller, read: Callable[[], State], settled: Callable[[State], bool], wait_s: float, state: State
) -> State:
    deadline, pause_s = time.monotonic() + wait_s, _FIRST_PAUSE_S
    while not settled(state) and caller.goes_on() and (left_s := deadline - time.monotonic()) > 0:
        await anyio.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        if await caller.is_gone():
            break
        state = await run_sync(read)
    return state

"""Waits for work while reporting its progress to the client."""

import time
from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import Field

from pipeline.interfaces.http.long_poll import wait_for
from pipeline.interfaces.mcp.tool import Call
from pipeline.operations.overview import fleet
from pipeline.storage.context import Context

State = TypeVar("State")
MAX_WAIT_S = 300
WaitS = Annotated[
    float,
    Field(ge=0, le=MAX_WAIT_S, description="Wait this many seconds for it to finish, and report progress."),
]
Steps = Callable[[State], tuple[float, float | None, str]]
"""The progress of a state: (done, total, in words)."""


async def followed(
    call: Call, read: Callable[[], State], settled: Callable[[State], bool], steps: Steps[State], wait_s: float
) -> State:
    """Return the state of `read` once it is settled, `wait_s` seconds have passed, or the client or server ends the
    call; at once if too many requests wait. Until then, report the progress whenever it has increased."""
    reported, deadline = -1.0, time.monotonic() + wait_s

    def moved(state: State) -> bool:
        return settled(state) or steps(state)[0] > reported

    while True:
        # Report here and not in the thread that reads: a report to a client that disappeared never ends.
        state = await wait_for(call.caller, read, moved, deadline - time.monotonic())
        done, total, words = steps(state)
        if done <= reported:  # the protocol requires progress to increase
            return state
        reported = done
        await call.report(done, total, words)
        if settled(state):
            return state


def no_worker(context: Context) -> str:
    """A sentence with a remedy if no worker is known to run, also while Redis is down; else empty."""
    now = fleet(context)
    return "" if now is not None and now.workers else "No worker is running: `penstock up` on the server starts one."

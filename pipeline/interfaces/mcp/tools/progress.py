"""Waiting for work while the client hears how far it is, and what to do when the wait is over."""

import time
from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import Field

from pipeline.interfaces.http.long_poll import wait_for
from pipeline.interfaces.mcp.tool import Call
from pipeline.operations.overview import fleet
from pipeline.storage.context import Context

Found = TypeVar("Found")
MAX_WAIT_S = 300
WaitS = Annotated[
    float,
    Field(ge=0, le=MAX_WAIT_S, description="Wait this many seconds for it to finish. Progress is reported meanwhile."),
]
Steps = Callable[[Found], tuple[float, float | None, str]]
"""How far something is: (done, of how many, in words)."""


async def followed(
    call: Call, look: Callable[[], Found], settled: Callable[[Found], bool], steps: Steps[Found], wait_s: float
) -> Found:
    """What `look` gives once it is settled, or when the wait is over; each step on the way is reported."""
    told, deadline = -1.0, time.monotonic() + wait_s

    def moved(now: Found) -> bool:
        return settled(now) or steps(now)[0] > told

    while True:
        # Told from here and not by the thread that looks: one that waits for a client that has gone never ends.
        found = await wait_for(call.caller, look, moved, deadline - time.monotonic())
        done, total, words = steps(found)
        if done <= told:  # the protocol wants progress to increase
            return found
        told = done
        await call.report(done, total, words)
        if settled(found):
            return found


def nobody_works(context: Context) -> str:
    """A sentence if no worker runs, which would be why nothing happens; else empty."""
    now = fleet(context)
    return "" if now is not None and now.workers else "No worker is running: `penstock up` on the server starts one."

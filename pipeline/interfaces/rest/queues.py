"""`/api/v1/queues` and `/api/v1/breakers`: show gates, and close and open them by hand."""

from datetime import datetime
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field

from pipeline.interfaces.http.dependencies import admin, reader
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Line, Strict, Wait, Word
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.long_poll import wait_for
from pipeline.interfaces.http.pages import Page
from pipeline.interfaces.http.shapes import Shape, example
from tasks import queues as control

queues = APIRouter(prefix="/queues", tags=["queues"], route_class=JsonRoute)
breakers = APIRouter(prefix="/breakers", tags=["breakers"], route_class=JsonRoute)
MAX_SECONDS = 366 * 86_400
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]


class LimitShape(Shape):
    """A limit, and how much of it is used now."""

    limit: str
    used: int
    of: str = Field(description="`queue`, or the provider all of whose queues share it.")
    most: int = Field(description="`used` of how many.")
    unit: str = Field(description="`requests` or `tokens`.")
    window_s: float
    next_in_s: float | None = Field(description="Seconds until there is room for one more; null if there is.")


class QueueShape(Shape):
    """A queue."""

    model_config = example(
        name="vision.openai",
        waiting=12,
        provider="openai",
        in_flight=4,
        capacity=8,
        is_full=False,
        limits=[
            {
                "limit": "500/min",
                "used": 131,
                "of": "openai",
                "most": 500,
                "unit": "requests",
                "window_s": 60.0,
                "next_in_s": None,
            }
        ],
        gate="closed",
        closed_by="operator",
        reason="maintenance",
        resumes_in_s=540.0,
    )
    name: str
    waiting: int = Field(description="Messages; those under way are not counted.")
    provider: str = Field(description="Whom its messages call; empty for a queue without a gate.")
    in_flight: int | None = Field(description="Messages under way; null without a gate.")
    capacity: int = Field(description="How many may be under way at once, its provider's others included; 0: no limit.")
    is_full: bool = Field(description="All these places are taken.")
    limits: list[LimitShape]
    gate: str = Field(description="`none`, `flowing` or `closed`.")
    closed_by: str = Field(
        description="`operator`, `spend`, `breaker`, or `limits` that are used up for now; empty unless it is closed."
    )
    reason: str
    resumes_in_s: float | None = Field(description="null while it flows, is closed until further notice, or by limits.")


class BreakerShape(Shape):
    """A breaker: one for each capability of a provider."""

    model_config = example(name="openai:vision", state="open", reason="5 failures in a row", left_s=12.5, failures=5)
    name: str
    state: str = Field(description="`closed`: calls are made; `open`: none are; `half-open`: one is, as a probe.")
    reason: str
    left_s: float = Field(description="Seconds until an open one lets a probe through.")
    failures: int = Field(description="In a row.")


class BreakerChangeShape(Shape):
    """A change of a breaker."""

    model_config = example(
        at="2026-11-23T08:30:00Z", state="open", reason="5 failures in a row", until="2026-11-23T08:30:15Z"
    )
    at: datetime
    state: str = Field(description="`open` or `closed`.")
    reason: str
    until: datetime | None = Field(description="When an open one was to let a probe through.")


class QueuePause(Strict):
    """A pause."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seconds": 600, "reason": "maintenance"}]})
    seconds: Seconds | None = Field(default=None, description="None: until it is resumed.")
    reason: Line = Field(default="", description="Shown beside the pause.")


class BreakerOpening(Strict):
    """How a breaker is opened."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seconds": 600, "reason": "invoice unpaid"}]})
    seconds: Seconds | None = Field(default=None, description="None: for one cool-down.")
    reason: Line = "by hand"


@queues.get("", dependencies=reader)
def list_queues() -> Page[QueueShape]:
    """List all queues: what waits, limits and their use, why a gate is closed and until when."""
    return Page(items=[QueueShape.model_validate(found) for found in control.list_queues()])


@queues.get("/{queue}", dependencies=reader, responses=documented(404))
def show_queue(queue: Word) -> QueueShape:
    """Show a queue with a gate."""
    return QueueShape.model_validate(control.queue(queue))


@queues.post("/{queue}/pause", dependencies=admin, responses=documented(404))
async def pause(request: Request, queue: Word, how: QueuePause | None = None, wait: Wait = 0) -> QueueShape:
    """Let nothing more through; calls in flight finish. Holds at once for every worker, and for those started later.

    Nothing is lost. With `wait`, the answer comes when the queue is drained: `in_flight` is 0.
    """
    how = how or QueuePause()
    await run_sync(control.pause, queue, how.seconds, how.reason)
    return QueueShape.model_validate(
        await wait_for(request.state.caller, lambda: control.queue(queue), lambda now: not now.in_flight, wait)
    )


@queues.post("/{queue}/resume", dependencies=admin, responses=documented(404))
def resume(queue: Word) -> QueueShape:
    """End an operator's pause. A breaker's remains: see `/breakers`."""
    control.resume(queue)
    return QueueShape.model_validate(control.queue(queue))


@breakers.get("", dependencies=reader)
def list_breakers() -> Page[BreakerShape]:
    """List all breakers: their state, why, and when they let a probe through."""
    return Page(items=[BreakerShape.model_validate(found) for found in control.list_breakers()])


@breakers.get("/{breaker}", dependencies=reader, responses=documented(404))
def show_breaker(breaker: Word) -> BreakerShape:
    """Show a breaker, by its name: `provider:capability`."""
    return BreakerShape.model_validate(control.breaker(breaker))


@breakers.get("/{breaker}/history", dependencies=reader, responses=documented(404))
def breaker_history(breaker: Word) -> Page[BreakerChangeShape]:
    """List when a breaker opened and closed lately, and why; the newest first."""
    return Page(items=[BreakerChangeShape.model_validate(found) for found in control.breaker_history(breaker)])


@breakers.post("/{breaker}/open", dependencies=admin, responses=documented(404))
def open_breaker(breaker: Word, how: BreakerOpening | None = None) -> BreakerShape:
    """Open a breaker by hand: its provider's queues stop."""
    how = how or BreakerOpening()
    control.open_breaker(breaker, how.seconds or 0.0, how.reason)
    return BreakerShape.model_validate(control.breaker(breaker))


@breakers.post("/{breaker}/close", dependencies=admin, responses=documented(404))
def close_breaker(breaker: Word) -> BreakerShape:
    """Close a breaker now, and end its timer."""
    control.close_breaker(breaker)
    return BreakerShape.model_validate(control.breaker(breaker))

"""`/api/v1/queues` and `/api/v1/breakers`: show, close and open gates."""

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter
from pydantic import ConfigDict, Field

from pipeline.engine.breaker import BreakerState
from pipeline.interfaces.http.dependencies import ByCaller, admin, reader
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Line, Strict, Wait, Word
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.long_poll import wait_for
from pipeline.interfaces.http.pages import Page
from pipeline.operations import queues as control
from pipeline.providers.breaker_record import BreakerChange
from pipeline.providers.queue_views import QueueView

queues = APIRouter(prefix="/queues", tags=["queues"], route_class=JsonRoute)
breakers = APIRouter(prefix="/breakers", tags=["breakers"], route_class=JsonRoute)
MAX_SECONDS = 366 * 86_400
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]


class QueuePause(Strict):
    """A pause."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seconds": 600, "reason": "maintenance"}]})
    seconds: Seconds | None = Field(default=None, description="None: until an operator resumes it.")
    reason: Line = Field(default="", description="Shown beside the pause.")


class BreakerOpening(Strict):
    """The options of opening a breaker."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seconds": 600, "reason": "invoice unpaid"}]})
    seconds: Seconds | None = Field(default=None, description="None: for one cool-down.")
    reason: Line = "by hand"


@queues.get("", dependencies=reader)
def list_queues(caller: ByCaller) -> Page[QueueView]:
    """List all queues: waiting work, limits and their use, and why and how long a gate is closed."""
    return Page(items=control.list_queues.by(caller))


@queues.get("/{queue}", dependencies=reader, responses=documented(404))
def show_queue(caller: ByCaller, queue: Word) -> QueueView:
    """Show a queue with a gate."""
    return control.queue.by(caller, queue)


@queues.post("/{queue}/pause", dependencies=admin, responses=documented(404))
async def pause(caller: ByCaller, queue: Word, how: QueuePause | None = None, wait: Wait = 0) -> QueueView:
    """Block calls; calls in flight finish. Applies at once to every worker, and to workers started later.

    Nothing is lost. With `wait`, answers when the queue is drained: `in_flight` is 0.
    """
    how = how or QueuePause()
    await run_sync(control.pause.by, caller, queue, how.seconds, how.reason)
    return await wait_for(caller, lambda: control.queue.by(caller, queue), lambda now: not now.in_flight, wait)


@queues.post("/{queue}/resume", dependencies=admin, responses=documented(404))
def resume(caller: ByCaller, queue: Word) -> QueueView:
    """End an operator's pause. An open breaker stays open: see `/breakers`."""
    control.resume.by(caller, queue)
    return control.queue.by(caller, queue)


@breakers.get("", dependencies=reader)
def list_breakers(caller: ByCaller) -> Page[BreakerState]:
    """List all breakers: their state, its reason, and the time of the next probe."""
    return Page(items=control.list_breakers.by(caller))


@breakers.get("/{breaker}", dependencies=reader, responses=documented(404))
def show_breaker(caller: ByCaller, breaker: Word) -> BreakerState:
    """Show a breaker by its name, `provider:capability`."""
    return control.breaker.by(caller, breaker)


@breakers.get("/{breaker}/history", dependencies=reader, responses=documented(404))
def breaker_history(caller: ByCaller, breaker: Word) -> Page[BreakerChange]:
    """List when and why a breaker recently opened and closed, newest first."""
    return Page(items=control.breaker_history.by(caller, breaker))


@breakers.post("/{breaker}/open", dependencies=admin, responses=documented(404))
def open_breaker(caller: ByCaller, breaker: Word, how: BreakerOpening | None = None) -> BreakerState:
    """Open a breaker: the queues of its provider and capability stop until a probe succeeds."""
    how = how or BreakerOpening()
    control.open_breaker.by(caller, breaker, how.seconds or 0.0, how.reason)
    return control.breaker.by(caller, breaker)


@breakers.post("/{breaker}/close", dependencies=admin, responses=documented(404))
def close_breaker(caller: ByCaller, breaker: Word) -> BreakerState:
    """Close a breaker now, and end its timer."""
    control.close_breaker.by(caller, breaker)
    return control.breaker.by(caller, breaker)

"""Webhooks: endpoints that events are sent to, and what became of each delivery."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from starlette.responses import Response

from pipeline.flows.webhooks.queries import DeliveryView, EndpointView
from pipeline.flows.webhooks.states import DeliveryStatus
from pipeline.interfaces.console import live
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.fields import BLANK, CursorText
from pipeline.interfaces.console.page import screen
from pipeline.interfaces.console.words import plural
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, admin, reader, writer
from pipeline.interfaces.http.fields import EventTypes, Id, Line, RowId, Url
from pipeline.operations import webhooks

router = APIRouter(prefix="/console/events", include_in_schema=False, dependencies=reader)
ROWS = 50
DELIVERY_CSS = {"pending": "waiting", "sending": "working", "delivered": "done", "failed": "failed"}
MaybeStatus = Annotated[DeliveryStatus | None, BLANK]
MAX_HOURS = 24 * 366


class EndpointForm(BaseModel):
    """An endpoint as its form sends it: nothing chosen means every type."""

    url: Url
    types: EventTypes = Field(default_factory=list)
    description: Annotated[Line, Field(max_length=200)] = ""


class DeliveriesPage(live.Asked):
    """Which deliveries, from which on."""

    endpoint: Annotated[Id | None, BLANK] = None
    status: MaybeStatus = None
    cursor: Annotated[CursorText | None, BLANK] = None

    def query(self, **change: str | None) -> dict[str, str]:
        """The query that asks for them, or for others."""
        asked = {"endpoint": self.endpoint, "status": self.status, **change}
        return {name: str(value) for name, value in asked.items() if value}


def _moves(deliveries: Sequence[DeliveryView], now: datetime) -> bool:
    """Whether some are under way or about to be, so that the page is worth fetching again soon."""
    soon = now + timedelta(seconds=10)
    return any(
        one.status is DeliveryStatus.SENDING
        or (one.status is DeliveryStatus.PENDING and (one.next_run_at is None or one.next_run_at < soon))
        for one in deliveries
    )


def _state(endpoint: EndpointView) -> tuple[str, str, str]:
    """(css, words, why)."""
    if not endpoint.active:
        return "paused", "disabled", endpoint.disabled_because or ""
    if endpoint.failures:
        return "failed", "failing", plural(endpoint.failures, "attempt") + " failed since one succeeded"
    return "done", "active", ""


def _kinds() -> list[tuple[str, list[str]]]:
    """Every type of event, by what it is about."""
    return [(kind, list(types)) for kind, types in groupby(webhooks.types(), lambda one: one.partition(".")[0])]


@router.get("/webhooks")
def list_endpoints(request: Request, caller: ByCaller) -> HTMLResponse:
    """The endpoints, and how they do."""
    counts = webhooks.delivery_counts.by(caller)
    return screen(request, "events/webhooks.html", endpoints=webhooks.endpoints.by(caller), state=_state, counts=counts)


@router.get("/webhooks/new", dependencies=admin)
def ask(request: Request) -> HTMLResponse:
    """The form for a new endpoint."""
    return screen(request, "events/endpoint_new.html", kinds=_kinds())


@router.post("/webhooks", dependencies=admin)
def create(request: Request, caller: ByCaller, form: Annotated[EndpointForm, Form()]) -> HTMLResponse:
    """Add an endpoint. This page is the only one with its secret."""
    return screen(request, "events/endpoint_made.html", status=201, made=webhooks.create.by(caller, **dict(form)))


@router.get("/webhooks/{endpoint_id}")
def show(request: Request, caller: ByCaller, endpoint_id: Id) -> HTMLResponse:
    """One endpoint, with its newest deliveries."""
    endpoint = webhooks.endpoint.by(caller, endpoint_id)
    newest = webhooks.deliveries.by(caller, endpoint_id, limit=20)
    return screen(
        request,
        "events/endpoint.html",
        endpoint=endpoint,
        state=_state(endpoint),
        kinds=_kinds(),
        css=DELIVERY_CSS,
        counts=webhooks.delivery_counts.by(caller, endpoint_id),
        deliveries=newest,
        moves=endpoint.active and _moves(newest, caller.context.db.now()),
    )


@router.post("/webhooks/{endpoint_id}", dependencies=admin)
def change(request: Request, caller: ByCaller, endpoint_id: Id, form: Annotated[EndpointForm, Form()]) -> Response:
    """Change where it is and what it gets."""
    webhooks.change.by(caller, endpoint_id, **dict(form))
    return done(request, "The endpoint is changed. What waits for it goes to its new address.")


@router.post("/webhooks/{endpoint_id}/enable", dependencies=admin)
def enable(request: Request, caller: ByCaller, endpoint_id: Id) -> Response:
    """Send it events from now on."""
    webhooks.change.by(caller, endpoint_id, active=True)
    return done(request, "The endpoint gets events from now on. “Send again” brings it those that it missed.")


@router.post("/webhooks/{endpoint_id}/disable", dependencies=admin)
def disable(request: Request, caller: ByCaller, endpoint_id: Id) -> Response:
    """Send it nothing more."""
    webhooks.change.by(caller, endpoint_id, active=False)
    return done(request, "The endpoint gets nothing more until it is enabled.")


@router.post("/webhooks/{endpoint_id}/delete", dependencies=admin)
def delete(request: Request, caller: ByCaller, endpoint_id: Id) -> Response:
    """Delete it with its deliveries."""
    webhooks.remove.by(caller, endpoint_id)
    return done(request, f"The endpoint {endpoint_id} is deleted.", to="/console/events/webhooks")


@router.post("/webhooks/{endpoint_id}/test", dependencies=writer)
def test(request: Request, caller: ByCaller, endpoint_id: Id) -> Response:
    """Send it a test."""
    made = webhooks.test.by(caller, endpoint_id)
    return done(request, f"A test is on its way: delivery {made.id} says how it went.")


@router.post("/webhooks/{endpoint_id}/replay", dependencies=writer)
def replay_time(
    request: Request, caller: ByCaller, endpoint_id: Id, hours: Annotated[float, Form(gt=0, le=MAX_HOURS)]
) -> Response:
    """Send it the events of the last hours again."""
    since = caller.context.db.now() - timedelta(hours=hours)
    return done(request, f"{plural(webhooks.replay_range.by(caller, endpoint_id, since), 'event')} will be sent again.")


@router.get("/deliveries")
def list_deliveries(request: Request, caller: ByCaller, page: Annotated[DeliveriesPage, Query()]) -> HTMLResponse:
    """Deliveries, the newest first."""
    (before,) = pages.decode(page.cursor, int) or (None,)
    found = webhooks.deliveries.by(caller, page.endpoint, page.status, before=before, limit=ROWS + 1)
    shown = pages.views(found, ROWS, lambda one: (one.id,))
    return screen(
        request,
        "events/deliveries.html",
        asked=page,
        endpoints=webhooks.endpoints.by(caller),
        css=DELIVERY_CSS,
        found=shown,
        counts=webhooks.delivery_counts.by(caller, page.endpoint),
        moves=not page.cursor and _moves(shown.items, caller.context.db.now()),
    )


@router.post("/deliveries/replay", dependencies=writer)
def replay_failed(
    request: Request, caller: ByCaller, endpoint: Annotated[Annotated[Id | None, BLANK], Form()] = None
) -> Response:
    """Send all that failed again."""
    again = webhooks.replay_failed.by(caller, endpoint)
    words = plural(again, "delivery", "deliveries")
    return done(request, f"{words} will be sent again." if again else "No delivery to an active endpoint has failed.")


@router.get("/deliveries/{delivery_id}")
def show_delivery(request: Request, caller: ByCaller, delivery_id: RowId) -> HTMLResponse:
    """One delivery with all its attempts."""
    found = webhooks.delivery.by(caller, delivery_id)
    return screen(
        request,
        "events/delivery.html",
        delivery=found,
        attempts=webhooks.attempts.by(caller, delivery_id),
        css=DELIVERY_CSS,
        endpoint=webhooks.endpoint.by(caller, found.endpoint_id),
        moves=_moves([found], caller.context.db.now()),
    )


@router.post("/deliveries/{delivery_id}/replay", dependencies=writer)
def replay(request: Request, caller: ByCaller, delivery_id: RowId) -> Response:
    """Send one again."""
    webhooks.replay.by(caller, delivery_id)
    return done(request, f"Delivery {delivery_id} is sent again.")

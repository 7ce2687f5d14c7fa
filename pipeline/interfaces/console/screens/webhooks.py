"""Webhooks: endpoints that events are sent to, and what became of each delivery."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from starlette.responses import Response

from pipeline.interfaces.console import live
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.fields import BLANK, CursorText
from pipeline.interfaces.console.page import screen
from pipeline.interfaces.console.words import plural
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import InContext, admin, reader, writer
from pipeline.interfaces.http.fields import Id, Line, RowId, Url
from pipeline.interfaces.rest.webhooks import Types
from tasks import webhooks as flow
from tasks.webhooks import DeliveryStatus, DeliveryView, EndpointView

router = APIRouter(prefix="/console/events", include_in_schema=False, dependencies=reader)
ROWS = 50
DELIVERY_CSS = {"pending": "waiting", "sending": "working", "delivered": "done", "failed": "failed"}
MaybeStatus = Annotated[DeliveryStatus | None, BLANK]
MAX_HOURS = 24 * 366


class EndpointForm(BaseModel):
    """An endpoint as its form sends it: nothing chosen means every type."""

    url: Url
    types: Types = Field(default_factory=list)
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
    return [(kind, list(types)) for kind, types in groupby(flow.types(), lambda one: one.partition(".")[0])]


@router.get("/webhooks")
def list_endpoints(request: Request) -> HTMLResponse:
    """The endpoints, and how they do."""
    return screen(
        request, "events/webhooks.html", endpoints=flow.endpoints(), state=_state, counts=flow.delivery_counts()
    )


@router.get("/webhooks/new", dependencies=admin)
def ask(request: Request) -> HTMLResponse:
    """The form for a new endpoint."""
    return screen(request, "events/endpoint_new.html", kinds=_kinds())


@router.post("/webhooks", dependencies=admin)
def create(request: Request, form: Annotated[EndpointForm, Form()]) -> HTMLResponse:
    """Add an endpoint. This page is the only one with its secret."""
    return screen(
        request, "events/endpoint_made.html", status=201, made=flow.create(form.url, form.types, form.description)
    )


@router.get("/webhooks/{endpoint_id}")
def show(request: Request, context: InContext, endpoint_id: Id) -> HTMLResponse:
    """One endpoint, with its newest deliveries."""
    endpoint, newest = flow.endpoint(endpoint_id), flow.deliveries(endpoint_id, limit=20)
    return screen(
        request,
        "events/endpoint.html",
        endpoint=endpoint,
        state=_state(endpoint),
        kinds=_kinds(),
        css=DELIVERY_CSS,
        counts=flow.delivery_counts(endpoint_id),
        deliveries=newest,
        moves=endpoint.active and _moves(newest, context.db.now()),
    )


@router.post("/webhooks/{endpoint_id}", dependencies=admin)
def change(request: Request, endpoint_id: Id, form: Annotated[EndpointForm, Form()]) -> Response:
    """Change where it is and what it gets."""
    flow.change(endpoint_id, url=form.url, types=form.types, description=form.description)
    return done(request, "The endpoint is changed. What waits for it goes to its new address.")


@router.post("/webhooks/{endpoint_id}/enable", dependencies=admin)
def enable(request: Request, endpoint_id: Id) -> Response:
    """Send it events from now on."""
    flow.change(endpoint_id, active=True)
    return done(request, "The endpoint gets events from now on. “Send again” brings it those that it missed.")


@router.post("/webhooks/{endpoint_id}/disable", dependencies=admin)
def disable(request: Request, endpoint_id: Id) -> Response:
    """Send it nothing more."""
    flow.change(endpoint_id, active=False)
    return done(request, "The endpoint gets nothing more until it is enabled.")


@router.post("/webhooks/{endpoint_id}/delete", dependencies=admin)
def delete(request: Request, endpoint_id: Id) -> Response:
    """Delete it with its deliveries."""
    flow.remove(endpoint_id)
    return done(request, f"The endpoint {endpoint_id} is deleted.", to="/console/events/webhooks")


@router.post("/webhooks/{endpoint_id}/test", dependencies=writer)
def test(request: Request, endpoint_id: Id) -> Response:
    """Send it a test."""
    made = flow.test(endpoint_id)
    return done(request, f"A test is on its way: delivery {made.id} says how it went.")


@router.post("/webhooks/{endpoint_id}/replay", dependencies=writer)
def replay_time(
    request: Request, context: InContext, endpoint_id: Id, hours: Annotated[float, Form(gt=0, le=MAX_HOURS)]
) -> Response:
    """Send it the events of the last hours again."""
    again = flow.replay_range(endpoint_id, context.db.now() - timedelta(hours=hours))
    return done(request, f"{plural(again, 'event')} will be sent again.")


@router.get("/deliveries")
def list_deliveries(request: Request, context: InContext, page: Annotated[DeliveriesPage, Query()]) -> HTMLResponse:
    """Deliveries, the newest first."""
    (before,) = pages.decode(page.cursor, int) or (None,)
    found = flow.deliveries(page.endpoint, page.status, before=before, limit=ROWS + 1)
    shown = pages.page(found, ROWS, lambda one: one, lambda one: (one.id,))
    return screen(
        request,
        "events/deliveries.html",
        asked=page,
        endpoints=flow.endpoints(),
        css=DELIVERY_CSS,
        found=shown,
        counts=flow.delivery_counts(page.endpoint),
        moves=not page.cursor and _moves(shown.items, context.db.now()),
    )


@router.post("/deliveries/replay", dependencies=writer)
def replay_failed(request: Request, endpoint: Annotated[Annotated[Id | None, BLANK], Form()] = None) -> Response:
    """Send all that failed again."""
    again = flow.replay_failed(endpoint)
    words = plural(again, "delivery", "deliveries")
    return done(request, f"{words} will be sent again." if again else "No delivery to an active endpoint has failed.")


@router.get("/deliveries/{delivery_id}")
def show_delivery(request: Request, context: InContext, delivery_id: RowId) -> HTMLResponse:
    """One delivery with all its attempts."""
    found = flow.delivery(delivery_id)
    return screen(
        request,
        "events/delivery.html",
        delivery=found,
        attempts=flow.attempts(delivery_id),
        css=DELIVERY_CSS,
        endpoint=flow.endpoint(found.endpoint_id),
        moves=_moves([found], context.db.now()),
    )


@router.post("/deliveries/{delivery_id}/replay", dependencies=writer)
def replay(request: Request, delivery_id: RowId) -> Response:
    """Send one again."""
    flow.replay(delivery_id)
    return done(request, f"Delivery {delivery_id} is sent again.")

"""Webhooks: the endpoints of events, and their deliveries."""

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
    """The form of an endpoint; no choice means every type."""

    url: Url
    types: EventTypes = Field(default_factory=list)
    description: Annotated[Line, Field(max_length=200)] = ""


class DeliveriesPage(live.ViewQuery):
    """The filter of deliveries, and the start of the page."""

    endpoint: Annotated[Id | None, BLANK] = None
    status: MaybeStatus = None
    cursor: Annotated[CursorText | None, BLANK] = None

    def query(self, **change: str | None) -> dict[str, str]:
        """Return the query of this filter with the given changes, without the cursor and empty values."""
        values = {"endpoint": self.endpoint, "status": self.status, **change}
        return {name: str(value) for name, value in values.items() if value}


def _moves(deliveries: Sequence[DeliveryView], now: datetime) -> bool:
    """Return whether some deliveries are under way or due soon, so that the page fetches itself again."""
    soon = now + timedelta(seconds=10)
    return any(
        delivery.status is DeliveryStatus.SENDING
        or (delivery.status is DeliveryStatus.PENDING and (delivery.next_run_at is None or delivery.next_run_at < soon))
        for delivery in deliveries
    )


def _state(endpoint: EndpointView) -> tuple[str, str, str]:
    """Return (CSS class, word, reason) of an endpoint's state."""
    if not endpoint.active:
        return "paused", "disabled", endpoint.disabled_because or ""
    if endpoint.failures:
        return "failed", "failing", plural(endpoint.failures, "attempt") + " failed since the last success"
    return "done", "active", ""


def _kinds() -> list[tuple[str, list[str]]]:
    """Return (subject, its types of events) for all types."""
    return [
        (kind, list(types))
        for kind, types in groupby(webhooks.types(), lambda event_type: event_type.partition(".")[0])
    ]


@router.get("/webhooks")
def list_endpoints(request: Request, caller: ByCaller) -> HTMLResponse:
    """Show the endpoints and their state."""
    counts = webhooks.delivery_counts.by(caller)
    return screen(request, "events/webhooks.html", endpoints=webhooks.endpoints.by(caller), state=_state, counts=counts)


@router.get("/webhooks/new", dependencies=admin)
def ask(request: Request) -> HTMLResponse:
    """Show the form of a new endpoint."""
    return screen(request, "events/endpoint_new.html", kinds=_kinds())


@router.post("/webhooks", dependencies=admin)
def create(request: Request, caller: ByCaller, form: Annotated[EndpointForm, Form()]) -> HTMLResponse:
    """Add an endpoint. Only this page shows its secret."""
    return screen(request, "events/endpoint_made.html", status=201, created=webhooks.create.by(caller, **dict(form)))


@router.get("/webhooks/{endpoint_id}")
def show(request: Request, caller: ByCaller, endpoint_id: Id) -> HTMLResponse:
    """Show an endpoint with its newest deliveries."""
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
    """Change an endpoint's address, description and types."""
    webhooks.change.by(caller, endpoint_id, **dict(form))
    return done(request, "The endpoint is changed. Waiting deliveries go to its new address.")


@router.post("/webhooks/{endpoint_id}/enable", dependencies=admin)
def enable(request: Request, caller: ByCaller, endpoint_id: Id) -> Response:
    """Enable an endpoint: send it events from now on."""
    webhooks.change.by(caller, endpoint_id, active=True)
    return done(request, "The endpoint receives events from now on. Use “Resend” for the events that it missed.")


@router.post("/webhooks/{endpoint_id}/disable", dependencies=admin)
def disable(request: Request, caller: ByCaller, endpoint_id: Id) -> Response:
    """Disable an endpoint."""
    webhooks.change.by(caller, endpoint_id, active=False)
    return done(request, "The endpoint receives nothing until you enable it.")


@router.post("/webhooks/{endpoint_id}/delete", dependencies=admin)
def delete(request: Request, caller: ByCaller, endpoint_id: Id) -> Response:
    """Delete an endpoint with its deliveries."""
    webhooks.remove.by(caller, endpoint_id)
    return done(request, f"The endpoint {endpoint_id} is deleted.", to="/console/events/webhooks")


@router.post("/webhooks/{endpoint_id}/test", dependencies=writer)
def test(request: Request, caller: ByCaller, endpoint_id: Id) -> Response:
    """Let workers send the event `webhook.test` to an endpoint."""
    delivery = webhooks.test.by(caller, endpoint_id)
    return done(request, f"A test is on its way: delivery {delivery.id} shows its outcome.")


@router.post("/webhooks/{endpoint_id}/replay", dependencies=writer)
def replay_time(
    request: Request, caller: ByCaller, endpoint_id: Id, hours: Annotated[float, Form(gt=0, le=MAX_HOURS)]
) -> Response:
    """Let workers send an endpoint the stored events of the last `hours` again, delivered or not."""
    since = caller.context.db.now() - timedelta(hours=hours)
    return done(request, f"{plural(webhooks.replay_range.by(caller, endpoint_id, since), 'event')} will be sent again.")


@router.get("/deliveries")
def list_deliveries(request: Request, caller: ByCaller, page: Annotated[DeliveriesPage, Query()]) -> HTMLResponse:
    """Show deliveries, newest first."""
    (before,) = pages.decode(page.cursor, int) or (None,)
    rows = webhooks.deliveries.by(caller, page.endpoint, page.status, before=before, limit=ROWS + 1)
    shown = pages.views(rows, ROWS, lambda delivery: (delivery.id,))
    return screen(
        request,
        "events/deliveries.html",
        filters=page,
        endpoints=webhooks.endpoints.by(caller),
        css=DELIVERY_CSS,
        page=shown,
        counts=webhooks.delivery_counts.by(caller, page.endpoint),
        moves=not page.cursor and _moves(shown.items, caller.context.db.now()),
    )


@router.post("/deliveries/replay", dependencies=writer)
def replay_failed(
    request: Request, caller: ByCaller, endpoint: Annotated[Annotated[Id | None, BLANK], Form()] = None
) -> Response:
    """Let workers send all failed deliveries again: of one endpoint, or of all active ones."""
    deliveries = webhooks.replay_failed.by(caller, endpoint)
    words = plural(deliveries, "delivery", "deliveries")
    return done(
        request, f"{words} will be sent again." if deliveries else "No delivery to an active endpoint has failed."
    )


@router.get("/deliveries/{delivery_id}")
def show_delivery(request: Request, caller: ByCaller, delivery_id: RowId) -> HTMLResponse:
    """Show a delivery with all its attempts."""
    view = webhooks.delivery.by(caller, delivery_id)
    return screen(
        request,
        "events/delivery.html",
        delivery=view,
        attempts=webhooks.attempts.by(caller, delivery_id),
        css=DELIVERY_CSS,
        endpoint=webhooks.endpoint.by(caller, view.endpoint_id),
        moves=_moves([view], caller.context.db.now()),
    )


@router.post("/deliveries/{delivery_id}/replay", dependencies=writer)
def replay(request: Request, caller: ByCaller, delivery_id: RowId) -> Response:
    """Let workers send a delivery again at once, whatever its outcome."""
    webhooks.replay.by(caller, delivery_id)
    return done(request, f"Delivery {delivery_id} is sent again.")

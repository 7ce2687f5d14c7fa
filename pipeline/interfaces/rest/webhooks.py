"""`/api/v1/webhooks`: the endpoints of events, and their deliveries."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from pipeline.flows.webhooks.queries import AttemptView, DeliveryView, EndpointView
from pipeline.flows.webhooks.service import Created
from pipeline.flows.webhooks.states import DeliveryStatus
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, admin, reader, writer
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import EventTypes, Id, Limit, Line, RowId, Strict, Url
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.operations import webhooks

router = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=JsonRoute)
ToEndpoint = Annotated[Id | None, Query(description="Only deliveries to this endpoint.")]
_URL = "https://example.com/hook"


class NewEndpoint(Strict):
    """An endpoint and its types of events."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"url": _URL, "types": ["document.completed"]}]})
    url: Url
    types: EventTypes = Field(
        default_factory=list, description="Such as `document.completed` or `document.*`; none: all."
    )
    description: Annotated[Line, Field(max_length=200)] = ""


class EndpointChange(Strict):
    """The changes of an endpoint. Omitted fields do not change."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"active": False}]})
    url: Url | None = None
    types: EventTypes | None = None
    description: Annotated[Line, Field(max_length=200)] | None = None
    active: bool | None = None


class Range(Strict):
    """A range of time whose events are sent again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"since": "2026-11-22T10:00:00Z"}]})
    since: At
    until: At | None = Field(default=None, description="None: until now.")


class Replayed(BaseModel):
    """The number of events that will be sent again."""

    replayed: int


@router.get("/types", dependencies=reader)
def list_types(caller: ByCaller) -> list[str]:
    """List all types of events."""
    return webhooks.types.by(caller)


@router.get("/endpoints", dependencies=reader)
def list_endpoints(caller: ByCaller) -> Page[EndpointView]:
    """List endpoints with their state."""
    return Page(items=webhooks.endpoints.by(caller))


@router.post("/endpoints", dependencies=admin, status_code=201)
def create_endpoint(caller: ByCaller, new: NewEndpoint, response: Response) -> Created:
    """Add an endpoint for all events from now on. Only this answer holds its secret.

    Penstock does not store the answer, so an Idempotency-Key has no effect: a repeated request adds another endpoint.
    """
    response.headers["Cache-Control"] = "no-store"
    return webhooks.create.by(caller, **dict(new))


@router.get("/endpoints/{endpoint_id}", dependencies=reader, responses=documented(404))
def show_endpoint(caller: ByCaller, endpoint_id: Id) -> EndpointView:
    """Show an endpoint."""
    return webhooks.endpoint.by(caller, endpoint_id)


@router.patch("/endpoints/{endpoint_id}", dependencies=admin, responses=documented(404))
def change_endpoint(caller: ByCaller, endpoint_id: Id, change: EndpointChange) -> EndpointView:
    """Change, disable or enable an endpoint. An enabled endpoint receives events from then on."""
    return webhooks.change.by(caller, endpoint_id, **dict(change))


@router.post("/endpoints/{endpoint_id}/secret", dependencies=admin, responses=documented(404))
def exchange_secret(caller: ByCaller, endpoint_id: Id, response: Response) -> Created:
    """Replace an endpoint's secret. For a day, the old secret signs as well.

    Penstock does not store the answer, so an Idempotency-Key has no effect: a repeated request replaces it again.
    """
    response.headers["Cache-Control"] = "no-store"
    return webhooks.exchange_secret.by(caller, endpoint_id)


@router.delete("/endpoints/{endpoint_id}", dependencies=admin, status_code=204, responses=documented(404))
def delete_endpoint(caller: ByCaller, endpoint_id: Id) -> Response:
    """Delete an endpoint with its deliveries."""
    webhooks.remove.by(caller, endpoint_id)
    return Response(status_code=204)


@router.post("/endpoints/{endpoint_id}/test", dependencies=writer, status_code=202, responses=documented(404, 409))
def test_endpoint(caller: ByCaller, endpoint_id: Id) -> DeliveryView:
    """Send `webhook.test`, whatever types the endpoint receives."""
    return webhooks.test.by(caller, endpoint_id)


@router.post("/endpoints/{endpoint_id}/replay", dependencies=writer, status_code=202, responses=documented(404, 409))
def replay_range(caller: ByCaller, endpoint_id: Id, when: Range) -> Replayed:
    """Send all events of a range of time again, including those from while the endpoint was disabled."""
    return Replayed(replayed=webhooks.replay_range.by(caller, endpoint_id, when.since, when.until))


@router.get("/deliveries", dependencies=reader)
def list_deliveries(
    caller: ByCaller,
    endpoint: ToEndpoint = None,
    status: Annotated[DeliveryStatus | None, Query(description="Only deliveries in this state.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[DeliveryView]:
    """List deliveries, newest first."""
    (before,) = pages.decode(cursor, int) or (None,)
    rows = webhooks.deliveries.by(caller, endpoint, status, before=before, limit=limit + 1)
    return pages.views(rows, limit, lambda delivery: (delivery.id,))


@router.get("/deliveries/counts", dependencies=reader)
def count_deliveries(caller: ByCaller, endpoint: ToEndpoint = None) -> dict[DeliveryStatus, int]:
    """Count deliveries by state."""
    return webhooks.delivery_counts.by(caller, endpoint)


@router.post("/deliveries/replay", dependencies=writer, status_code=202, responses=documented(404, 409))
def replay_failed(
    caller: ByCaller,
    endpoint: Annotated[
        Id | None, Query(description="Only deliveries to this endpoint; none: to all active endpoints.")
    ] = None,
) -> Replayed:
    """Send every FAILED delivery again."""
    return Replayed(replayed=webhooks.replay_failed.by(caller, endpoint))


@router.get("/deliveries/{delivery_id}", dependencies=reader, responses=documented(404))
def show_delivery(caller: ByCaller, delivery_id: RowId) -> DeliveryView:
    """Show a delivery."""
    return webhooks.delivery.by(caller, delivery_id)


@router.get("/deliveries/{delivery_id}/attempts", dependencies=reader, responses=documented(404))
def list_attempts(caller: ByCaller, delivery_id: RowId) -> Page[AttemptView]:
    """List all attempts at a delivery, oldest first."""
    webhooks.delivery.by(caller, delivery_id)
    return Page(items=webhooks.attempts.by(caller, delivery_id))


@router.post("/deliveries/{delivery_id}/replay", dependencies=writer, status_code=202, responses=documented(404, 409))
def replay_delivery(caller: ByCaller, delivery_id: RowId) -> DeliveryView:
    """Send a delivery again, whatever its outcome; a waiting delivery is sent at once."""
    return webhooks.replay.by(caller, delivery_id)

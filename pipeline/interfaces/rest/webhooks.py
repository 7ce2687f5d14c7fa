"""`/api/v1/webhooks`: endpoints that events are sent to, and what became of each delivery."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import admin, reader, writer
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Id, Limit, Line, RowId, Strict, Url
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.http.shapes import Shape, example
from tasks import webhooks as flow
from tasks.webhooks import DeliveryStatus

router = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=JsonRoute)
Types = Annotated[list[Annotated[Line, Field(max_length=80)]], Field(max_length=50)]
_WAITS = {"ep": "ep_0123456789abcdef", "url": "https://example.com/hook"}


class EndpointShape(Shape):
    """An endpoint. Its secret is told once, when it is made."""

    model_config = example(
        id=_WAITS["ep"],
        url=_WAITS["url"],
        types=["document.*"],
        description="our desk",
        active=True,
        disabled_because=None,
        failures=0,
        failing_since=None,
        paused_until=None,
        missed=0,
        created_at="2026-11-22T10:00:00Z",
    )
    id: str
    url: str
    types: list[str] = Field(description="Types of events, or patterns; empty: every event.")
    description: str
    active: bool
    disabled_because: str | None
    failures: int = Field(description="Attempts that failed since one succeeded.")
    failing_since: datetime | None
    paused_until: datetime | None = Field(description="Nothing is sent to it before, since it failed.")
    missed: int = Field(description="Events that were not kept for long enough to be sent.")
    created_at: datetime


class CreatedShape(Shape):
    """An endpoint with its new secret. No other answer has the secret."""

    endpoint: EndpointShape
    secret: str = Field(description="`whsec_…`: whoever receives verifies with it.")


class DeliveryShape(Shape):
    """An event on its way to an endpoint."""

    id: int
    endpoint_id: str
    seq: int | None = Field(description="The event's number; null: a test.")
    type: str
    status: DeliveryStatus
    attempts: int
    response_status: int | None = Field(description="Of the last attempt; null: there was no answer.")
    error: str | None
    next_run_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


class DeliveryAttemptShape(Shape):
    """One attempt at a delivery."""

    id: int
    response_status: int | None
    preview: str = Field(description="The beginning of the answer.")
    error: str | None
    latency_ms: int
    created_at: datetime


class NewEndpoint(Strict):
    """What is wanted where."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"url": _WAITS["url"], "types": ["document.completed"]}]})
    url: Url
    types: Types = Field(default_factory=list, description="Such as `document.completed` or `document.*`; none: all.")
    description: Annotated[Line, Field(max_length=200)] = ""


class EndpointChange(Strict):
    """What is to be different. What is left out stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"active": False}]})
    url: Url | None = None
    types: Types | None = None
    description: Annotated[Line, Field(max_length=200)] | None = None
    active: bool | None = None


class Range(Strict):
    """A time whose events are sent again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"since": "2026-11-22T10:00:00Z"}]})
    since: At
    until: At | None = Field(default=None, description="None: until now.")


class Replayed(BaseModel):
    """How many events will be sent again."""

    replayed: int


@router.get("/types", dependencies=reader)
def list_types() -> list[str]:
    """List every type of event that there may be."""
    return flow.types()


@router.get("/endpoints", dependencies=reader)
def list_endpoints() -> Page[EndpointShape]:
    """List endpoints, and how they do."""
    return Page(items=[EndpointShape.model_validate(found) for found in flow.endpoints()])


@router.post("/endpoints", dependencies=admin, status_code=201)
def create_endpoint(new: NewEndpoint, response: Response) -> CreatedShape:
    """Add an endpoint for all events from now on. The answer is the only one with its secret.

    That answer is not kept, so an Idempotency-Key does not help here: sent again, the request adds another endpoint.
    """
    response.headers["Cache-Control"] = "no-store"
    return CreatedShape.model_validate(flow.create(new.url, new.types, new.description))


@router.get("/endpoints/{endpoint_id}", dependencies=reader, responses=documented(404))
def show_endpoint(endpoint_id: Id) -> EndpointShape:
    """Show an endpoint."""
    return EndpointShape.model_validate(flow.endpoint(endpoint_id))


@router.patch("/endpoints/{endpoint_id}", dependencies=admin, responses=documented(404))
def change_endpoint(endpoint_id: Id, change: EndpointChange) -> EndpointShape:
    """Change an endpoint, disable or enable it. An enabled endpoint gets the events from then on."""
    changed = flow.change(
        endpoint_id, url=change.url, types=change.types, active=change.active, description=change.description
    )
    return EndpointShape.model_validate(changed)


@router.post("/endpoints/{endpoint_id}/secret", dependencies=admin, responses=documented(404))
def exchange_secret(endpoint_id: Id, response: Response) -> CreatedShape:
    """Exchange an endpoint's secret. For a day, the former one signs as well.

    That answer is not kept, so an Idempotency-Key does not help here: sent again, the request exchanges it again.
    """
    response.headers["Cache-Control"] = "no-store"
    return CreatedShape.model_validate(flow.exchange_secret(endpoint_id))


@router.delete("/endpoints/{endpoint_id}", dependencies=admin, status_code=204, responses=documented(404))
def delete_endpoint(endpoint_id: Id) -> Response:
    """Delete an endpoint with its deliveries."""
    flow.remove(endpoint_id)
    return Response(status_code=204)


@router.post("/endpoints/{endpoint_id}/test", dependencies=writer, status_code=202, responses=documented(404, 409))
def test_endpoint(endpoint_id: Id) -> DeliveryShape:
    """Send `webhook.test`, whatever types the endpoint wants."""
    return DeliveryShape.model_validate(flow.test(endpoint_id))


@router.post("/endpoints/{endpoint_id}/replay", dependencies=writer, status_code=202, responses=documented(404, 409))
def replay_range(endpoint_id: Id, when: Range) -> Replayed:
    """Send all events of a time again, also those that came while the endpoint was disabled."""
    return Replayed(replayed=flow.replay_range(endpoint_id, when.since, when.until))


@router.get("/deliveries", dependencies=reader)
def list_deliveries(
    endpoint: Annotated[Id | None, Query(description="Only those to this endpoint.")] = None,
    status: Annotated[DeliveryStatus | None, Query(description="Only those in this state.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[DeliveryShape]:
    """List deliveries, the newest first."""
    (before,) = pages.decode(cursor, int) or (None,)
    found = flow.deliveries(endpoint, status, before=before, limit=limit + 1)
    return pages.page(found, limit, DeliveryShape.model_validate, lambda one: (one.id,))


@router.get("/deliveries/counts", dependencies=reader)
def count_deliveries(
    endpoint: Annotated[Id | None, Query(description="Only those to this endpoint.")] = None,
) -> dict[DeliveryStatus, int]:
    """Count deliveries by state."""
    return flow.delivery_counts(endpoint)


@router.post("/deliveries/replay", dependencies=writer, status_code=202, responses=documented(404, 409))
def replay_failed(
    endpoint: Annotated[Id | None, Query(description="Only those to this endpoint; none: to all active ones.")] = None,
) -> Replayed:
    """Send every FAILED delivery again."""
    return Replayed(replayed=flow.replay_failed(endpoint))


@router.get("/deliveries/{delivery_id}", dependencies=reader, responses=documented(404))
def show_delivery(delivery_id: RowId) -> DeliveryShape:
    """Show a delivery."""
    return DeliveryShape.model_validate(flow.delivery(delivery_id))


@router.get("/deliveries/{delivery_id}/attempts", dependencies=reader, responses=documented(404))
def list_attempts(delivery_id: RowId) -> Page[DeliveryAttemptShape]:
    """List all attempts at a delivery, the first one first."""
    flow.delivery(delivery_id)
    return Page(items=[DeliveryAttemptShape.model_validate(found) for found in flow.attempts(delivery_id)])


@router.post("/deliveries/{delivery_id}/replay", dependencies=writer, status_code=202, responses=documented(404, 409))
def replay_delivery(delivery_id: RowId) -> DeliveryShape:
    """Send a delivery again, however it ended; one that waits is sent at once."""
    return DeliveryShape.model_validate(flow.replay(delivery_id))

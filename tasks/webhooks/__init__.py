"""Webhooks, for Python: events are sent to other people's endpoints, signed by the Standard Webhooks specification.

>>> from tasks import webhooks
>>> made = webhooks.create("https://example.com/hook", ["document.completed", "document.failed"])
>>> made.secret  # told this once: the receiver verifies with it
'whsec_…'
>>> webhooks.test(made.endpoint.id)

Every function returns plain typed objects. All raise `UserError` with a sentence for people.
"""

from collections.abc import Sequence
from datetime import datetime

from pipeline.engine.errors import UserError
from pipeline.engine.logs import configure_as_library
from pipeline.flows import flows
from pipeline.flows.webhooks import plan, queries, service
from pipeline.flows.webhooks.queries import AttemptView, DeliveryView, EndpointView
from pipeline.flows.webhooks.service import Created
from pipeline.flows.webhooks.states import DeliveryStatus
from tasks.context import get_context
from tasks.webhooks.canvas import TASKS

__all__ = [
    "AttemptView",
    "Created",
    "DeliveryStatus",
    "DeliveryView",
    "EndpointView",
    "UserError",
    "attempts",
    "change",
    "create",
    "deliveries",
    "delivery",
    "delivery_counts",
    "endpoint",
    "endpoints",
    "exchange_secret",
    "remove",
    "replay",
    "replay_failed",
    "replay_range",
    "test",
    "types",
]

configure_as_library()


def types() -> list[str]:
    """Every type of event that an endpoint may want."""
    flows()
    return service.known_types()


def create(url: str, types: Sequence[str] = (), description: str = "") -> Created:  # names of options
    """Add an endpoint for later events: `types` such as `document.completed` or `document.*`; none: every one."""
    flows()
    return service.create(get_context(), url, types, description, known=service.known_types())


def change(
    endpoint_id: str,
    *,
    url: str | None = None,
    types: Sequence[str] | None = None,
    active: bool | None = None,
    description: str | None = None,
) -> EndpointView:
    """Change an endpoint, enable or disable it. An enabled one gets events from then on."""
    flows()
    known = service.known_types()
    changed = service.change(
        get_context(), endpoint_id, url=url, types=types, active=active, description=description, known=known
    )
    _launch()
    return changed


def exchange_secret(endpoint_id: str) -> Created:
    """Give an endpoint a new secret, and return it this once. For a day the former one signs as well."""
    return service.exchange_secret(get_context(), endpoint_id)


def remove(endpoint_id: str) -> None:
    """Delete an endpoint with its deliveries."""
    service.remove(get_context(), endpoint_id)


def endpoints() -> list[EndpointView]:
    """All endpoints. Secrets are not told again."""
    return queries.endpoints(get_context())


def endpoint(endpoint_id: str) -> EndpointView:
    """One endpoint."""
    return queries.endpoint(get_context(), endpoint_id)


def test(endpoint_id: str) -> DeliveryView:
    """Send the endpoint a test event; `delivery` says what became of it."""
    made = service.test(get_context(), endpoint_id)
    _launch()
    return made


def deliveries(
    endpoint_id: str | None = None, status: DeliveryStatus | None = None, *, before: int | None = None, limit: int = 50
) -> list[DeliveryView]:
    """Deliveries, the newest first. `before`: only those with a lower id."""
    return queries.deliveries(get_context(), endpoint_id, status, before=before, limit=limit)


def delivery_counts(endpoint_id: str | None = None) -> dict[DeliveryStatus, int]:
    """How many deliveries are in each state."""
    return queries.delivery_counts(get_context(), endpoint_id)


def delivery(delivery_id: int) -> DeliveryView:
    """One delivery."""
    return queries.delivery(get_context(), delivery_id)


def attempts(delivery_id: int) -> list[AttemptView]:
    """All attempts at a delivery, the first one first."""
    return queries.attempts(get_context(), delivery_id)


def replay(delivery_id: int) -> DeliveryView:
    """Send one delivery again."""
    made = service.replay(get_context(), delivery_id)
    _launch()
    return made


def replay_range(endpoint_id: str, since: datetime, until: datetime | None = None) -> int:
    """Send an endpoint all events of a time again that it wants and that are kept; how many."""
    count = service.replay_range(get_context(), endpoint_id, since, until)
    _launch()
    return count


def replay_failed(endpoint_id: str | None = None) -> int:
    """Send every delivery that failed for good again, to one endpoint or to all that are active; how many."""
    count = service.replay_failed(get_context(), endpoint_id)
    _launch()
    return count


def _launch() -> None:
    TASKS.launch(plan.SEND)

"""Operations on webhooks: endpoints, whose addresses administrators set, and deliveries to them."""

from collections.abc import Sequence

from pipeline.flows import flows
from pipeline.flows.webhooks import queries, service
from pipeline.flows.webhooks.queries import EndpointView
from pipeline.flows.webhooks.service import Created
from pipeline.operations.caller import Caller
from pipeline.operations.operation import acts, operation, reads
from pipeline.storage.api_keys import Scope


@operation(Scope.READ)
def types(_: Caller) -> list[str]:
    """Return every type of event that an endpoint may request."""
    flows()  # importing a flow registers the events of its tables
    return service.known_types()


@operation(Scope.ADMIN)
def create(caller: Caller, url: str, types: Sequence[str] = (), description: str = "") -> Created:
    """Add an endpoint for later events; return it with its secret, which no other answer contains. `types` such as
    `document.completed` or `document.*`; empty: every type."""
    flows()
    return service.create(caller.context, url, types, description)


@operation(Scope.ADMIN)
def change(
    caller: Caller,
    endpoint_id: str,
    *,
    url: str | None = None,
    types: Sequence[str] | None = None,
    active: bool | None = None,
    description: str | None = None,
) -> EndpointView:
    """Change the given fields of an endpoint; None: unchanged. An endpoint that `active=True` enables gets events from
    then on, not earlier ones."""
    flows()
    return service.change(caller.context, endpoint_id, url=url, types=types, active=active, description=description)


endpoint, endpoints = reads(queries.endpoint), reads(queries.endpoints)
deliveries, delivery = reads(queries.deliveries), reads(queries.delivery)
delivery_counts, attempts = reads(queries.delivery_counts), reads(queries.attempts)
exchange_secret, remove = acts(service.exchange_secret, Scope.ADMIN), acts(service.remove, Scope.ADMIN)
test, replay = acts(service.test, Scope.WRITE), acts(service.replay, Scope.WRITE)
replay_range = acts(service.replay_range, Scope.WRITE)
replay_failed = acts(service.replay_failed, Scope.WRITE)

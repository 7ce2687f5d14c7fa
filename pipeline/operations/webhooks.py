"""Operations on webhooks: endpoints, whose addresses administrators set, and deliveries to them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.flows import flows
from pipeline.flows.documents import queries as queries_of_documents
from pipeline.flows.webhooks import queries, service
from pipeline.flows.webhooks.queries import EndpointView
from pipeline.flows.webhooks.rules.callback import Callback
from pipeline.flows.webhooks.service import Created
from pipeline.flows.webhooks.settings import webhooks_of
from pipeline.operations.caller import Caller
from pipeline.operations.operation import acts, operation, reads
from pipeline.operations.refusal import Refused
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


@operation(Scope.WRITE)
def call_back(caller: Caller, callbacks: Sequence[tuple[str, Mapping[str, str]]], task: Callback) -> None:
    """Send the progress of a task of documents to addresses, as (URL, headers): messages of all documents that come to
    rest, or did already.

    Raises `Refused` (403) unless the settings allow callbacks, and the errors of `service.create_callback`.
    """
    context = caller.context
    check_callbacks(caller, [url for url, _ in callbacks])
    ids = [
        service.create_callback(context, url, replace(task, headers=dict(headers)), caller.id)
        for url, headers in callbacks
    ]
    # Read after the endpoints exist: they get later changes as events.
    views = queries_of_documents.documents_by_id(context, list(task.documents))
    states = [(view.id, view.status.name.lower(), {"error": view.error, "pages": view.pages}) for view in views]
    for endpoint_id in ids:
        service.report(context, endpoint_id, states)


def check_callbacks(caller: Caller, urls: Sequence[str]) -> None:
    """Raise `Refused` (403) if there are callbacks and the settings allow none, `UserError` for an invalid address."""
    if urls and not webhooks_of(caller.context.settings).callbacks:
        message = "this server calls nobody back (PENSTOCK_WEBHOOKS__CALLBACKS): ask for the status instead"
        raise Refused(message, code="not_allowed")
    for url in urls:
        service.check_url(url)


endpoint, endpoints = reads(queries.endpoint), reads(queries.endpoints)
deliveries, delivery = reads(queries.deliveries), reads(queries.delivery)
delivery_counts, attempts = reads(queries.delivery_counts), reads(queries.attempts)
exchange_secret, remove = acts(service.exchange_secret, Scope.ADMIN), acts(service.remove, Scope.ADMIN)
test, replay = acts(service.test, Scope.WRITE), acts(service.replay, Scope.WRITE)
replay_range = acts(service.replay_range, Scope.WRITE)
replay_failed = acts(service.replay_failed, Scope.WRITE)

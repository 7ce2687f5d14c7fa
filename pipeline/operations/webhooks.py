"""Webhooks, as one may use them: endpoints, of which administrators say where they are, and deliveries to them."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from pipeline.flows import flows
from pipeline.flows.webhooks import plan, queries, service
from pipeline.operations.caller import Caller
from pipeline.operations.operation import Operation, acts, operation, reads
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

P = ParamSpec("P")
R = TypeVar("R")


def _acts(function: Callable[Concatenate[Context, P], R], scope: Scope = Scope.WRITE) -> Operation[P, R]:
    """An operation that knows every flow's types of events, and after which there may be something to send."""

    @wraps(function)
    def act(context: Context, /, *args: P.args, **named: P.kwargs) -> R:
        from tasks.webhooks.canvas import TASKS  # noqa: PLC0415  # with Celery, which who only reads does not need

        flows()
        result = function(context, *args, **named)
        TASKS.launch(plan.SEND)
        return result

    return acts(act, scope)


@operation(Scope.READ)
def types(_: Caller) -> list[str]:
    """Every type of event that an endpoint may want."""
    flows()
    return service.known_types()


endpoint, endpoints = reads(queries.endpoint), reads(queries.endpoints)
deliveries, delivery = reads(queries.deliveries), reads(queries.delivery)
delivery_counts, attempts = reads(queries.delivery_counts), reads(queries.attempts)
create, change = _acts(service.create, Scope.ADMIN), _acts(service.change, Scope.ADMIN)
exchange_secret, remove = acts(service.exchange_secret, Scope.ADMIN), acts(service.remove, Scope.ADMIN)
test, replay = _acts(service.test), _acts(service.replay)
replay_range, replay_failed = _acts(service.replay_range), _acts(service.replay_failed)

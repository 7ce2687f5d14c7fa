"""The Python API of webhooks: endpoints that get events, signed by the Standard Webhooks specification.

>>> from tasks import webhooks
>>> made = webhooks.create("https://example.com/hook", ["document.completed", "document.failed"])
>>> made.secret  # told this once: the receiver verifies with it
'whsec_…'
>>> webhooks.test(made.endpoint.id)

Every function returns plain typed objects. All raise `UserError` with a message for people.
"""

from pipeline.engine.errors import UserError
from pipeline.engine.logs import configure_as_library
from pipeline.flows.webhooks.queries import AttemptView, DeliveryView, EndpointView
from pipeline.flows.webhooks.service import Created
from pipeline.flows.webhooks.states import DeliveryStatus
from pipeline.operations.webhooks import (
    attempts,
    change,
    create,
    deliveries,
    delivery,
    delivery_counts,
    endpoint,
    endpoints,
    exchange_secret,
    remove,
    replay,
    replay_failed,
    replay_range,
    test,
    types,
)

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

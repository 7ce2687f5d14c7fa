"""The Python API of calls to AI services: their purpose, provider, duration and cost.

>>> from tasks import calls
>>> calls.stats(by="provider", since=datetime.now(UTC) - timedelta(hours=2))
>>> [call.error for call in calls.list_calls(flow="documents", status="failed", limit=5)]
"""

from pipeline.engine.errors import UserError
from pipeline.engine.logs import configure_as_library
from pipeline.operations.calls import Which, list_calls, show, stats, total
from pipeline.providers.calls import By, CallFilter, CallStats, CallView, Capability, UnknownCall

__all__ = [
    "By",
    "CallFilter",
    "CallStats",
    "CallView",
    "Capability",
    "UnknownCall",
    "UserError",
    "Which",
    "list_calls",
    "show",
    "stats",
    "total",
]

configure_as_library()

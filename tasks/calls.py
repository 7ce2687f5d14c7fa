"""Calls to AI services, for Python: what was asked, of whom, how long it took, what it cost.

>>> from tasks import calls
>>> calls.stats(by="provider", since=datetime.now(UTC) - timedelta(hours=2))
>>> [call.error for call in calls.list_calls(flow="documents", status="failed", limit=5)]
"""

from datetime import datetime
from typing import TypedDict, Unpack

from pipeline.engine.errors import UserError
from pipeline.engine.logs import configure_as_library
from pipeline.providers import calls as queries
from pipeline.providers.calls import By, CallFilter, CallStats, CallView, Capability, UnknownCall
from tasks.context import get_context

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


class Which(TypedDict, total=False):
    """Which calls: the fields of `CallFilter`, as keywords."""

    flow: str
    scope_id: str
    provider: str
    model: str
    capability: str
    status: str
    since: datetime | None
    until: datetime | None


def list_calls(*, limit: int = 50, **which: Unpack[Which]) -> list[CallView]:
    """Calls, newest first. `which`: the fields of `CallFilter`, such as `provider="openai"`."""
    return queries.calls(get_context(), CallFilter(**which), limit=limit)


def show(call_id: int) -> CallView:
    """One call. Raises `UnknownCall`."""
    return queries.call(get_context(), call_id)


def stats(by: By | str = By.PROVIDER, **which: Unpack[Which]) -> list[CallStats]:
    """Figures by provider, model, flow, capability, operation, status or day. `which`: fields of `CallFilter`."""
    return queries.stats(get_context(), CallFilter(**which), By(by))


def total(**which: Unpack[Which]) -> CallStats | None:
    """Figures of all these calls together; None if there are none. `which`: fields of `CallFilter`."""
    return next(iter(queries.stats(get_context(), CallFilter(**which))), None)

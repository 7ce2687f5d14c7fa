"""Calls to AI services: single calls, sums, and figures over time."""

from dataclasses import replace
from datetime import datetime
from typing import TypedDict, Unpack

from pipeline.operations.caller import Caller
from pipeline.operations.operation import operation, reads
from pipeline.providers import call_series
from pipeline.providers import calls as record
from pipeline.providers.calls import By, CallFilter, CallStats, CallView
from pipeline.storage.api_keys import Scope


class Which(TypedDict, total=False):
    """A filter of calls: the fields of `CallFilter`, as keywords."""

    flow: str
    scope_id: str
    provider: str
    model: str
    capability: str
    status: str
    since: datetime | None
    until: datetime | None


@operation(Scope.READ)
def list_calls(
    caller: Caller,
    chosen: CallFilter | None = None,
    *,
    limit: int = 50,
    after: tuple[datetime, int] | None = None,
    **which: Unpack[Which],
) -> list[CallView]:
    """Return calls on record, newest first. `which`: fields of `CallFilter`, such as `provider="openai"`; they replace
    those of `chosen`.

    `after`: only calls older than the one with this time and id. Only administrators get models' answers (`preview`).
    """
    calls_ = record.calls(caller.context, replace(chosen or CallFilter(), **which), limit=limit, after=after)
    return calls_ if caller.is_admin else [replace(call, preview=None) for call in calls_]


@operation(Scope.READ)
def show(caller: Caller, call_id: int) -> CallView:
    """Return one call on record. Raises `UnknownCall`. Only administrators get the model's answer (`preview`)."""
    call = record.call(caller.context, call_id)
    return call if caller.is_admin else replace(call, preview=None)


@operation(Scope.READ)
def stats(caller: Caller, by: By | str = By.PROVIDER, **which: Unpack[Which]) -> list[CallStats]:
    """Return figures of each group of calls, most calls first; days and hours in order. `which`: fields of
    `CallFilter`."""
    return record.stats(caller.context, CallFilter(**which), By(by))


@operation(Scope.READ)
def total(caller: Caller, **which: Unpack[Which]) -> CallStats | None:
    """Return figures of all matching calls together; None without any. `which`: fields of `CallFilter`."""
    return record.total(caller.context, CallFilter(**which))


summary, series = reads(record.summary), reads(call_series.series)

"""`/api/v1/calls`: the calls to AI services, as a list and in figures."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import AfterValidator

from pipeline.engine.errors import OUTCOMES
from pipeline.flows import FLOWS
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, reader
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Id, Limit, RowId, Word
from pipeline.interfaces.http.moments import At, Since, Until, check_range
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.operations import calls
from pipeline.providers.calls import By, CallFilter, CallSeries, CallSummary, CallView, Capability

router = APIRouter(prefix="/calls", tags=["calls"], dependencies=reader)


def _known(name: str) -> str:
    if name not in FLOWS:
        raise ValueError(f"must be one of {', '.join(FLOWS)}")
    return name


Flow = Annotated[Annotated[Word, AfterValidator(_known)] | None, Query(description=f"One of {', '.join(FLOWS)}.")]
About = Annotated[Id | None, Query(description="Only calls for this document, run or batch.")]
Status = Annotated[
    Literal[*OUTCOMES] | None,  # type: ignore[valid-type]
    Query(description="The outcome of the calls; `failed`: any outcome but ok."),
]


def _which(
    flow: Flow = None,
    scope_id: About = None,
    provider: Word | None = None,
    model: Word | None = None,
    capability: Capability | None = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
) -> CallFilter:
    check_range(since, until)
    return CallFilter(
        flow or "", scope_id or "", provider or "", model or "", capability or "", status or "", since, until
    )


Which = Annotated[CallFilter, Depends(_which)]


@router.get("")
def list_calls(which: Which, caller: ByCaller, limit: Limit = 50, cursor: Cursor = None) -> Page[CallView]:
    """List calls, newest first."""
    rows = calls.list_calls.by(caller, which, limit=limit + 1, after=pages.decode(cursor, At, int))
    return pages.views(rows, limit, lambda call: (call.created_at, call.id))


@router.get("/stats")
def stats(which: Which, caller: ByCaller, by: By = By.PROVIDER) -> CallSummary:
    """Sum up calls: their number, failures, latency, tokens and cost."""
    return calls.summary.by(caller, which, by)


@router.get("/series")
def series(which: Which, caller: ByCaller, by: Literal["hour", "day"] = "hour") -> CallSeries:
    """Show calls over time and by model; percentiles are accurate to a few percent. At most the newest 800 points."""
    return calls.series.by(caller, which, By(by))


@router.get("/{call_id}", responses=documented(404))
def show(call_id: RowId, caller: ByCaller) -> CallView:
    """Show a call."""
    return calls.show.by(caller, call_id)

"""`/api/v1/calls`: the record of every call to an AI service, one by one and in figures."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import AfterValidator, Field, JsonValue

from pipeline.flows import FLOWS
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, InContext, reader
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Id, Limit, RowId, Word
from pipeline.interfaces.http.moments import At, Since, Until, check_range
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.http.shapes import Shape, example
from pipeline.providers import call_series
from pipeline.providers import calls as record
from pipeline.providers.calls import By, CallFilter, CallView, Capability

router = APIRouter(prefix="/calls", tags=["calls"], dependencies=reader)


def _known(name: str) -> str:
    if name not in FLOWS:
        raise ValueError(f"must be one of {', '.join(FLOWS)}")
    return name


Flow = Annotated[Annotated[Word, AfterValidator(_known)] | None, Query(description=f"One of {', '.join(FLOWS)}.")]
About = Annotated[Id | None, Query(description="Only those about this document, run or batch.")]
Status = Annotated[
    Literal["ok", "failed", "permanent", "transient", "rate_limited", "quota", "cancelled"] | None,
    Query(description="How they ended; `failed`: anything but ok."),
]


class CallShape(Shape):
    """A call to an AI service."""

    model_config = example(
        id=4711,
        created_at="2026-11-22T10:00:00Z",
        flow="documents",
        scope_id="0123456789abcdef",
        unit="3",
        capability="vision",
        operation="page",
        provider="openai",
        model="gpt-5-mini",
        status="ok",
        error=None,
        latency_ms=2210,
        input_tokens=1514,
        output_tokens=702,
        cost=0.0018,
        preview=None,
    )
    id: int
    created_at: datetime
    flow: str
    scope_id: str = Field(description="A document, a run of the music pipeline, a batch of screenshots, an item.")
    unit: str = Field(description="What of it, such as a page.")
    capability: str
    operation: str
    provider: str
    model: str
    status: str = Field(description="`ok`, or the kind of its error.")
    error: str | None
    latency_ms: int
    input_tokens: int
    output_tokens: int
    cost: float = Field(description="By the provider's price list.")
    preview: str | None = Field(description="The beginning of the answer; null unless the caller is an administrator.")


class CallFiguresShape(Shape):
    """Figures of a group of calls. Latencies are those of calls that succeeded."""

    group: str
    calls: int
    failed: int
    failure_rate: float
    mean_ms: float | None
    p50_ms: int | None
    p95_ms: int | None
    input_tokens: int
    output_tokens: int
    cost: float
    first_at: datetime | None
    last_at: datetime | None


_FIGURES: dict[str, JsonValue] = {
    "group": "openai",
    "calls": 900,
    "failed": 9,
    "failure_rate": 0.01,
    "mean_ms": 2100.5,
    "p50_ms": 1900,
    "p95_ms": 4400,
    "input_tokens": 1200000,
    "output_tokens": 600000,
    "cost": 1.51,
    "first_at": "2026-11-22T08:00:00Z",
    "last_at": "2026-11-22T10:00:00Z",
}


class CallStatsShape(Shape):
    """What calls sum up to."""

    model_config = example(by="provider", total={**_FIGURES, "group": ""}, groups=[_FIGURES])
    by: By
    total: CallFiguresShape | None = Field(description="All of them together; null if there are none.")
    groups: list[CallFiguresShape]


class ModelFiguresShape(Shape):
    """Figures of the calls of one model."""

    provider: str
    model: str
    figures: CallFiguresShape


class CallSeriesShape(Shape):
    """Calls over time and by model."""

    model_config = example(
        by="hour",
        points=[{**_FIGURES, "group": "2026-11-22T10:00Z"}],
        total={**_FIGURES, "group": ""},
        models=[{"provider": "openai", "model": "gpt-5-mini", "figures": _FIGURES}],
    )
    by: By
    points: list[CallFiguresShape] = Field(description="Every hour or day; `group` is when it begins.")
    models: list[ModelFiguresShape] = Field(description="Those with most calls first.")
    total: CallFiguresShape


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
def list_calls(
    which: Which, context: InContext, caller: ByCaller, limit: Limit = 50, cursor: Cursor = None
) -> Page[CallShape]:
    """List calls, newest first."""
    found = record.calls(context, which, limit=limit + 1, after=pages.decode(cursor, At, int))
    told = caller.is_admin
    return pages.page(found, limit, lambda call: _shape(call, told), lambda call: (call.created_at, call.id))


@router.get("/stats")
def stats(which: Which, context: InContext, by: By = By.PROVIDER) -> CallStatsShape:
    """Sum calls up: how many, how many failed, how long they took, their tokens and cost."""
    total, groups = record.stats(context, which), record.stats(context, which, by)
    return CallStatsShape(
        by=by,
        total=CallFiguresShape.model_validate(total[0]) if total else None,
        groups=[CallFiguresShape.model_validate(found) for found in groups],
    )


@router.get("/series")
def series(which: Which, context: InContext, by: Literal["hour", "day"] = "hour") -> CallSeriesShape:
    """Show calls over time and by model; percentiles are right to some percent. At most the newest 800 points."""
    found = call_series.series(context, which, By(by))
    models = [
        ModelFiguresShape(provider=provider, model=model, figures=CallFiguresShape.model_validate(one))
        for (provider, model), one in found.models.items()
    ]
    points = [CallFiguresShape.model_validate(one) for one in found.points]
    return CallSeriesShape(
        by=found.by, points=points, models=models, total=CallFiguresShape.model_validate(found.total)
    )


@router.get("/{call_id}", responses=documented(404))
def show(call_id: RowId, context: InContext, caller: ByCaller) -> CallShape:
    """Show a call."""
    return _shape(record.call(context, call_id), caller.is_admin)


def _shape(call: CallView, told: bool) -> CallShape:
    shape = CallShape.model_validate(call)
    return shape if told else shape.model_copy(update={"preview": None})

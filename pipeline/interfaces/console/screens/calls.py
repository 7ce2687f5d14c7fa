"""Calls to AI services: how many, how long, how dear, how many failed; each of them, and one in full."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import Field

from pipeline.engine.errors import ErrorKind
from pipeline.flows import FLOWS
from pipeline.interfaces.console import charts, live, words
from pipeline.interfaces.console.charts import Chart
from pipeline.interfaces.console.fields import BLANK, CursorText
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, InContext, reader
from pipeline.interfaces.http.fields import CLEAN, Id, RowId
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.places import place_of_call
from pipeline.operations import documents
from pipeline.providers import call_series
from pipeline.providers import calls as record
from pipeline.providers.call_series import CallSeries
from pipeline.providers.calls import By, CallFilter, CallStats, CallView
from pipeline.storage.context import Context

router = APIRouter(prefix="/console/calls", include_in_schema=False, dependencies=reader)
ROWS = 50
STATUSES = ("ok", "failed", *(kind.value for kind in ErrorKind))
SPANS = {
    "day": ("24 hours", 1, By.HOUR),
    "week": ("7 days", 7, By.HOUR),
    "month": ("30 days", 30, By.DAY),
    "quarter": ("90 days", 90, By.DAY),
}
Model = Annotated[str, Field(min_length=1, max_length=120), CLEAN]


class CallsAsked(live.Asked):
    """Which calls."""

    span: Literal["day", "week", "month", "quarter"] = "day"
    flow: Annotated[Literal[*FLOWS] | None, BLANK] = None  # type: ignore[valid-type]
    provider: Annotated[Model | None, BLANK] = None
    model: Annotated[Model | None, BLANK] = None
    status: Annotated[Literal[*STATUSES] | None, BLANK] = None  # type: ignore[valid-type]
    scope_id: Annotated[Id | None, BLANK] = None

    def filter(self, now: datetime) -> CallFilter:
        """It as a filter. One subject's calls are shown however old they are."""
        since = None if self.scope_id else now - timedelta(days=SPANS[self.span][1])
        return CallFilter(
            self.flow or "", self.scope_id or "", self.provider or "", self.model or "", "", self.status or "", since
        )

    def query(self, **change: Any) -> dict[str, Any]:
        """The query that asks for it, or for something else."""
        asked = {**self.model_dump(exclude_none=True), **change}
        return {
            name: value for name, value in asked.items() if value not in (None, "") and (name, value) != ("span", "day")
        }


class CallsPage(CallsAsked):
    """Which calls, from which on."""

    cursor: Annotated[CursorText | None, BLANK] = None


@dataclass
class _Kept:
    until: float
    series: CallSeries


_kept: dict[tuple[int, CallsAsked], _Kept] = {}
_keeping = Lock()
_SHARE, _LEAST_S = 20, 3.0


def _series(context: Context, asked: CallsAsked) -> CallSeries:
    """The figures, not older than some seconds, or twenty times what they take: many calls take long to sum up."""
    key = id(context), asked
    with _keeping:  # also: whoever asks for the same waits for it, instead of asking again
        found = _kept.get(key)
        if found and found.until > time.monotonic():
            return found.series
        began = time.monotonic()
        # Whatever the outcome: the share of those that failed is among what is shown.
        which = replace(asked.filter(context.db.now()), status="")
        series = call_series.series(context, which, SPANS[asked.span][2])
        took = time.monotonic() - began
        for old in [one for one, kept in _kept.items() if kept.until < began]:
            del _kept[old]
        _kept[key] = _Kept(time.monotonic() + max(_LEAST_S, took * _SHARE), series)
        return series


def _moment(point: CallStats) -> str:
    return f"{point.group[:10]} {point.group[11:16]}".strip() + " UTC"


def _charts(series: CallSeries) -> dict[str, Chart]:
    points, total = series.points, series.total
    counted, times, costs, tokens = [], [], [], []
    for one in points:
        when = _moment(one)
        counted.append(f"{when}: {words.plural(one.calls, 'call')}, {one.failed} failed")
        times.append(f"{when}: half within {words.ms(one.p50_ms)}, 95 of 100 within {words.ms(one.p95_ms)}")
        costs.append(f"{when}: {words.money(one.cost)}")
        tokens.append(f"{when}: {one.input_tokens:,} in, {one.output_tokens:,} out")
    return {
        "calls": charts.columns(
            [(one.calls - one.failed, one.failed) for one in points],
            ("ok", "failed"),
            counted,
            f"{words.plural(total.calls, 'call')}, {total.failed} failed",
        ),
        "latency": charts.lines(
            [(one.p50_ms, one.p95_ms) for one in points],
            ("half", "most"),
            times,
            f"half within {words.ms(total.p50_ms)}, 95 of 100 within {words.ms(total.p95_ms)}",
        ),
        "cost": charts.columns([(one.cost,) for one in points], ("ok",), costs, f"{words.money(total.cost)} in all"),
        "tokens": charts.columns(
            [(one.input_tokens, one.output_tokens) for one in points],
            ("ok", "out"),
            tokens,
            f"{total.input_tokens:,} in, {total.output_tokens:,} out",
        ),
    }


def _figures(context: Context, asked: CallsAsked) -> str:
    series = _series(context, asked)
    return piece(
        "calls/_figures.html",
        series=series,
        charts=_charts(series),
        asked=asked,
        span=SPANS[asked.span][0],
        first=_moment(series.points[0]),
        last="now",
    )


def _names(calls: Sequence[CallView]) -> dict[str, str]:
    """The files that these calls were for, by the document's id; deleted ones are left out."""
    ids = {call.scope_id for call in calls if call.flow == "documents"}
    return {one.id: one.filename for one in documents.several(ids)}


def _list(context: Context, asked: CallsAsked, cursor: str | None = None) -> str:
    after = pages.decode(cursor, At, int)
    found = record.calls(context, asked.filter(context.db.now()), limit=ROWS + 1, after=after)
    page = pages.page(found, ROWS, lambda call: call, lambda call: (call.created_at, call.id))
    any_call = bool(page.items) or bool(record.calls(context, limit=1))
    return piece(
        "calls/_list.html",
        found=page,
        asked=asked,
        any_call=any_call,
        cursor=cursor,
        about=place_of_call,
        names=_names(page.items),
    )


@live.view("calls", every_s=5)
def fragments(context: Context, asked: CallsAsked) -> dict[str, str]:
    """The charts, and the newest calls."""
    return {"call-figures": _figures(context, asked), "call-list": _list(context, asked)}


@router.get("")
def list_calls(request: Request, context: InContext, page: Annotated[CallsPage, Query()]) -> HTMLResponse:
    """Charts, totals by model, and the calls, newest first."""
    asked, cursor = CallsAsked(**page.model_dump(exclude={"cursor"})), page.cursor
    series = _series(context, CallsAsked(span=asked.span))
    return screen(
        request,
        "calls/index.html",
        asked=asked,
        spans={name: one[0] for name, one in SPANS.items()},
        flows=FLOWS,
        statuses=STATUSES,
        models=sorted({model for _, model in series.models} | ({asked.model} - {None})),
        providers=sorted({name for name, _ in series.models} | ({asked.provider} - {None})),
        cursor=cursor,
        figures=_figures(context, asked),
        calls=_list(context, asked, cursor),
    )


@router.get("/{call_id}")
def show(request: Request, context: InContext, caller: ByCaller, call_id: RowId) -> HTMLResponse:
    """One call. What the model said is for administrators alone."""
    call = record.call(context, call_id)
    beside = CallFilter(flow=call.flow, scope_id=call.scope_id)
    others = record.calls(context, beside, limit=21) if call.scope_id else []
    told = caller.is_admin
    return screen(
        request,
        "calls/call.html",
        call=call if told else replace(call, preview=""),
        told=told,
        about=place_of_call(call.flow, call.scope_id, call.unit),
        place_of_call=place_of_call,
        names=_names([call]),
        others=[one for one in others if one.id != call.id][:20],
    )

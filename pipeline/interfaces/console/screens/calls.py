"""Calls to AI services: figures of number, latency, cost and failures; the list; one call in full."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import Field

from pipeline.engine.errors import OUTCOMES
from pipeline.flows import FLOWS
from pipeline.interfaces.console import charts, live, words
from pipeline.interfaces.console.charts import Chart
from pipeline.interfaces.console.fields import BLANK, CursorText
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, reader
from pipeline.interfaces.http.fields import CLEAN, Id, RowId
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.places import place_of_call
from pipeline.operations import calls, documents
from pipeline.operations.caller import Caller
from pipeline.providers.calls import By, CallFilter, CallSeries, CallStats, CallView
from pipeline.storage.context import Context

router = APIRouter(prefix="/console/calls", include_in_schema=False, dependencies=reader)
ROWS = 50
SPANS = {
    "day": ("24 hours", 1, By.HOUR),
    "week": ("7 days", 7, By.HOUR),
    "month": ("30 days", 30, By.DAY),
    "quarter": ("90 days", 90, By.DAY),
}
Model = Annotated[str, Field(min_length=1, max_length=120), CLEAN]


class CallsQuery(live.ViewQuery):
    """The filter of the calls."""

    span: Literal["day", "week", "month", "quarter"] = "day"
    flow: Annotated[Literal[*FLOWS] | None, BLANK] = None  # type: ignore[valid-type]
    provider: Annotated[Model | None, BLANK] = None
    model: Annotated[Model | None, BLANK] = None
    status: Annotated[Literal[*OUTCOMES] | None, BLANK] = None  # type: ignore[valid-type]
    scope_id: Annotated[Id | None, BLANK] = None

    def filter(self, now: datetime) -> CallFilter:
        """Return the filter for operations, from the start of the span. The calls of one subject have no age limit."""
        since = None if self.scope_id else now - timedelta(days=SPANS[self.span][1])
        return CallFilter(
            self.flow or "", self.scope_id or "", self.provider or "", self.model or "", "", self.status or "", since
        )

    def query(self, **change: Any) -> dict[str, Any]:
        """Return the query of this filter with the given changes, without empty values and the default span."""
        values = {**self.model_dump(exclude_none=True), **change}
        return {
            name: value
            for name, value in values.items()
            if value not in (None, "") and (name, value) != ("span", "day")
        }


class CallsPage(CallsQuery):
    """The filter and the start of the page."""

    cursor: Annotated[CursorText | None, BLANK] = None


@dataclass
class _Kept:
    until: float
    series: CallSeries


_kept: dict[tuple[int, CallsQuery], _Kept] = {}
_keeping = Lock()
_SHARE, _LEAST_S = 20, 3.0


def _series(caller: Caller, filters: CallsQuery) -> CallSeries:
    """Return the figures by time and model, of calls with any outcome, cached for `_LEAST_S` seconds, or longer if they
    take long to sum up."""
    key = id(caller.context), filters
    with _keeping:  # a second request for the same figures waits instead of computing them
        cached = _kept.get(key)
        if cached and cached.until > time.monotonic():
            return cached.series
        began = time.monotonic()
        # All outcomes, because the figures include the share of failures.
        which = replace(filters.filter(caller.context.db.now()), status="")
        series = calls.series.by(caller, which, SPANS[filters.span][2])
        took = time.monotonic() - began
        for old in [old_key for old_key, entry in _kept.items() if entry.until < began]:
            del _kept[old]
        _kept[key] = _Kept(time.monotonic() + max(_LEAST_S, took * _SHARE), series)
        return series


def _moment(point: CallStats) -> str:
    return f"{point.group[:10]} {point.group[11:16]}".strip() + " UTC"


def _charts(series: CallSeries) -> dict[str, Chart]:
    points, total = series.points, series.total
    counted, times, costs, tokens = [], [], [], []
    for point in points:
        when = _moment(point)
        counted.append(f"{when}: {words.plural(point.calls, 'call')}, {point.failed} failed")
        times.append(f"{when}: median {words.ms(point.p50_ms)}, 95th percentile {words.ms(point.p95_ms)}")
        costs.append(f"{when}: {words.money(point.cost)}")
        tokens.append(f"{when}: {point.input_tokens:,} in, {point.output_tokens:,} out")
    return {
        "calls": charts.columns(
            [(point.calls - point.failed, point.failed) for point in points],
            ("ok", "failed"),
            counted,
            f"{words.plural(total.calls, 'call')}, {total.failed} failed",
        ),
        "latency": charts.lines(
            [(point.p50_ms, point.p95_ms) for point in points],
            ("half", "most"),
            times,
            f"median {words.ms(total.p50_ms)}, 95th percentile {words.ms(total.p95_ms)}",
        ),
        "cost": charts.columns(
            [(point.cost,) for point in points], ("ok",), costs, f"{words.money(total.cost)} in all"
        ),
        "tokens": charts.columns(
            [(point.input_tokens, point.output_tokens) for point in points],
            ("ok", "out"),
            tokens,
            f"{total.input_tokens:,} in, {total.output_tokens:,} out",
        ),
    }


def _figures(caller: Caller, filters: CallsQuery) -> str:
    series = _series(caller, filters)
    return piece(
        "calls/_figures.html",
        series=series,
        charts=_charts(series),
        filters=filters,
        span=SPANS[filters.span][0],
        first=_moment(series.points[0]),
        last="now",
    )


def _names(caller: Caller, rows: Sequence[CallView]) -> dict[str, str]:
    """Return the file names of these calls' documents by id, without deleted documents."""
    ids = {call.scope_id for call in rows if call.flow == "documents"}
    return {document.id: document.filename for document in documents.several.by(caller, ids)}


def _list(caller: Caller, filters: CallsQuery, cursor: str | None = None) -> str:
    which, after = filters.filter(caller.context.db.now()), pages.decode(cursor, At, int)
    rows = calls.list_calls.by(caller, which, limit=ROWS + 1, after=after)
    page = pages.views(rows, ROWS, lambda call: (call.created_at, call.id))
    any_call = bool(page.items) or bool(calls.list_calls.by(caller, limit=1))
    return piece(
        "calls/_list.html",
        page=page,
        filters=filters,
        any_call=any_call,
        cursor=cursor,
        about=place_of_call,
        names=_names(caller, page.items),
    )


@live.view("calls", every_s=5)
def fragments(context: Context, query: CallsQuery) -> dict[str, str]:
    """Return HTML by element id: the charts and the newest calls."""
    caller = Caller(context)
    return {"call-figures": _figures(caller, query), "call-list": _list(caller, query)}


@router.get("")
def list_calls(request: Request, caller: ByCaller, page: Annotated[CallsPage, Query()]) -> HTMLResponse:
    """Show charts, totals by model, and the calls, newest first."""
    filters, cursor = CallsQuery(**page.model_dump(exclude={"cursor"})), page.cursor
    series = _series(caller, CallsQuery(span=filters.span))
    return screen(
        request,
        "calls/index.html",
        filters=filters,
        spans={name: label for name, (label, *_) in SPANS.items()},
        flows=FLOWS,
        statuses=OUTCOMES,
        models=sorted({stats.model for stats in series.models} | ({filters.model} - {None})),
        providers=sorted({stats.provider for stats in series.models} | ({filters.provider} - {None})),
        cursor=cursor,
        figures=_figures(caller, filters),
        calls=_list(caller, filters, cursor),
    )


@router.get("/{call_id}")
def show(request: Request, caller: ByCaller, call_id: RowId) -> HTMLResponse:
    """Show a call. Only administrators see the model's answer."""
    call = calls.show.by(caller, call_id)
    beside = CallFilter(flow=call.flow, scope_id=call.scope_id)
    others = calls.list_calls.by(caller, beside, limit=21) if call.scope_id else []
    return screen(
        request,
        "calls/call.html",
        call=call,
        about=place_of_call(call.flow, call.scope_id, call.unit),
        place_of_call=place_of_call,
        names=_names(caller, [call]),
        others=[other for other in others if other.id != call.id][:20],
    )

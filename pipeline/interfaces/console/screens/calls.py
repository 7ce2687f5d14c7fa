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


class CallsAsked(live.Asked):
    """Which calls."""

    span: Literal["day", "week", "month", "quarter"] = "day"
    flow: Annotated[Literal[*FLOWS] | None, BLANK] = None  # type: ignore[valid-type]
    provider: Annotated[Model | None, BLANK] = None
    model: Annotated[Model | None, BLANK] = None
    status: Annotated[Literal[*OUTCOMES] | None, BLANK] = None  # type: ignore[valid-type]
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


def _series(caller: Caller, asked: CallsAsked) -> CallSeries:
    """The figures, not older than some seconds, or twenty times what they take: many calls take long to sum up."""
    key = id(caller.context), asked
    with _keeping:  # also: whoever asks for the same waits for it, instead of asking again
        found = _kept.get(key)
        if found and found.until > time.monotonic():
            return found.series
        began = time.monotonic()
        # Whatever the outcome: the share of those that failed is among what is shown.
        which = replace(asked.filter(caller.context.db.now()), status="")
        series = calls.series.by(caller, which, SPANS[asked.span][2])
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


def _figures(caller: Caller, asked: CallsAsked) -> str:
    series = _series(caller, asked)
    return piece(
        "calls/_figures.html",
        series=series,
        charts=_charts(series),
        asked=asked,
        span=SPANS[asked.span][0],
        first=_moment(series.points[0]),
        last="now",
    )


def _names(caller: Caller, found: Sequence[CallView]) -> dict[str, str]:
    """The files that these calls were for, by the document's id; deleted ones are left out."""
    ids = {call.scope_id for call in found if call.flow == "documents"}
    return {one.id: one.filename for one in documents.several.by(caller, ids)}


def _list(caller: Caller, asked: CallsAsked, cursor: str | None = None) -> str:
    which, after = asked.filter(caller.context.db.now()), pages.decode(cursor, At, int)
    found = calls.list_calls.by(caller, which, limit=ROWS + 1, after=after)
    page = pages.views(found, ROWS, lambda call: (call.created_at, call.id))
    any_call = bool(page.items) or bool(calls.list_calls.by(caller, limit=1))
    return piece(
        "calls/_list.html",
        found=page,
        asked=asked,
        any_call=any_call,
        cursor=cursor,
        about=place_of_call,
        names=_names(caller, page.items),
    )


@live.view("calls", every_s=5)
def fragments(context: Context, asked: CallsAsked) -> dict[str, str]:
    """The charts, and the newest calls."""
    caller = Caller(context)
    return {"call-figures": _figures(caller, asked), "call-list": _list(caller, asked)}


@router.get("")
def list_calls(request: Request, caller: ByCaller, page: Annotated[CallsPage, Query()]) -> HTMLResponse:
    """Charts, totals by model, and the calls, newest first."""
    asked, cursor = CallsAsked(**page.model_dump(exclude={"cursor"})), page.cursor
    series = _series(caller, CallsAsked(span=asked.span))
    return screen(
        request,
        "calls/index.html",
        asked=asked,
        spans={name: one[0] for name, one in SPANS.items()},
        flows=FLOWS,
        statuses=OUTCOMES,
        models=sorted({one.model for one in series.models} | ({asked.model} - {None})),
        providers=sorted({one.provider for one in series.models} | ({asked.provider} - {None})),
        cursor=cursor,
        figures=_figures(caller, asked),
        calls=_list(caller, asked, cursor),
    )


@router.get("/{call_id}")
def show(request: Request, caller: ByCaller, call_id: RowId) -> HTMLResponse:
    """One call. What the model said is for administrators alone."""
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
        others=[one for one in others if one.id != call.id][:20],
    )

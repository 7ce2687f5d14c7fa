"""Queries for calls to AI services: single calls, and statistics. The rows are `engine.traces.AiCall`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, and_, func, literal, or_, select, true

from pipeline.engine.errors import UserError
from pipeline.engine.tables import table_of
from pipeline.engine.traces import AiCall
from pipeline.engine.views import view_of
from pipeline.engine.wire import VIEW, example
from pipeline.providers import call_totals
from pipeline.storage.context import Context
from pipeline.storage.retention import LEDGER_LEAST, Retention, Rule, rows

CALLS = table_of(AiCall)
OK = "ok"
_FIGURES: dict[str, Any] = {
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


class Capability(StrEnum):
    """The purpose of a call."""

    VISION = "vision"
    TEXT = "text"
    EMBEDDINGS = "embeddings"


class By(StrEnum):
    """How statistics are grouped. Days and hours are in UTC."""

    PROVIDER = "provider"
    MODEL = "model"
    FLOW = "flow"
    CAPABILITY = "capability"
    OPERATION = "operation"
    SCOPE = "scope"
    """A document, a run of the music pipeline, a batch of screenshots."""
    STATUS = "status"
    DAY = "day"
    HOUR = "hour"
    """Written like `2026-11-22T10:00Z`."""


class UnknownCall(UserError):
    """No call has this id."""

    def __init__(self, call_id: int) -> None:
        super().__init__(f"there is no call {call_id}; see `penstock calls list`", code="unknown_call")


@dataclass(frozen=True)
class CallFilter:
    """Selects calls; empty and None fields match all."""

    flow: str = ""
    scope_id: str = ""
    """A document, a run of the music pipeline, a batch of screenshots."""
    provider: str = ""
    model: str = ""
    capability: str = ""
    status: str = ""
    """`ok`, `failed` (anything else), or the kind of an error, such as `rate_limited`."""
    since: datetime | None = None
    until: datetime | None = None
    """Exclusive."""

    def condition(self) -> ColumnElement[bool]:
        """Return the filter as a condition on the table of calls."""
        named = ("flow", "scope_id", "provider", "model", "capability")
        conditions = [CALLS.c[name] == value for name in named if (value := getattr(self, name))]
        if self.status:
            conditions.append(CALLS.c.status != OK if self.status == "failed" else CALLS.c.status == self.status)
        if self.since:
            conditions.append(CALLS.c.created_at >= self.since)
        if self.until:
            conditions.append(CALLS.c.created_at < self.until)
        return and_(true(), *conditions)


@dataclass(frozen=True)
class CallView:
    """A call to an AI service."""

    __pydantic_config__ = example(
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
    scope_id: str
    """A document, a run of the music pipeline, a batch of screenshots, an item."""
    unit: str
    """The part of it, such as a page."""
    capability: str
    operation: str
    provider: str
    model: str
    status: str
    """`ok`, or the kind of its error."""
    error: str | None
    latency_ms: int
    input_tokens: int
    output_tokens: int
    cost: float
    """By the provider's price list."""
    preview: str | None
    """The beginning of the answer; null unless the caller is an administrator."""

    @property
    def failed(self) -> bool:
        return self.status != OK


@dataclass(frozen=True)
class CallStats:
    """Figures of a group of calls. Latencies are those of calls that succeeded; null if none did."""

    __pydantic_config__ = VIEW
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
    """By the providers' price lists."""
    first_at: datetime | None
    last_at: datetime | None


@dataclass(frozen=True)
class CallSummary:
    """Sums of calls, by group and in total."""

    __pydantic_config__ = example(by="provider", total={**_FIGURES, "group": ""}, groups=[_FIGURES])
    by: By
    total: CallStats | None
    """All calls together; null without calls."""
    groups: list[CallStats]


@dataclass(frozen=True)
class ModelStats:
    """Figures of the calls of one model."""

    __pydantic_config__ = VIEW
    provider: str
    model: str
    figures: CallStats


@dataclass(frozen=True)
class CallSeries:
    """Calls over time and by model. Its figures have no `first_at` and `last_at`."""

    __pydantic_config__ = example(
        by="hour",
        points=[{**_FIGURES, "group": "2026-11-22T10:00Z"}],
        models=[{"provider": "openai", "model": "gpt-5-mini", "figures": _FIGURES}],
        total={**_FIGURES, "group": ""},
    )
    by: By
    """`hour` or `day`."""
    points: list[CallStats]
    """Every hour or day from the first to the last, also without any call; `group` is when it begins."""
    models: list[ModelStats]
    """Those with most calls first."""
    total: CallStats


def calls(
    context: Context, which: CallFilter = CallFilter(), *, limit: int = 50, after: tuple[datetime, int] | None = None
) -> list[CallView]:
    """Return calls, newest first. `after`: only calls older than the one with this time and id."""
    created_at, key = CALLS.c.created_at, CALLS.c.id
    query = select(CALLS).where(which.condition()).order_by(created_at.desc(), key.desc()).limit(limit)
    if after is not None:
        query = query.where(or_(created_at < after[0], and_(created_at == after[0], key < after[1])))
    with context.db.read() as session:
        return [view_of(CallView, row) for row in session.execute(query)]


def call(context: Context, call_id: int) -> CallView:
    """Return one call. Raises `UnknownCall`."""
    with context.db.read() as session:
        row = session.execute(select(CALLS).where(CALLS.c.id == call_id)).one_or_none()
    if row is None:
        raise UnknownCall(call_id)
    return view_of(CallView, row)


def stats(context: Context, which: CallFilter = CallFilter(), by: By | None = None) -> list[CallStats]:
    """Return statistics by group, most calls first, times in order; without `by`, one row of all matches, if any."""
    # Select the rows first, separately: otherwise SQLite reads all calls in the order of the groups.
    chosen = (
        (
            select(
                _group(context, by).label("group"),
                (CALLS.c.status == OK).label("ok"),
                CALLS.c.latency_ms,
                CALLS.c.input_tokens,
                CALLS.c.output_tokens,
                CALLS.c.cost,
                CALLS.c.created_at,
            ).where(which.condition())
        )
        .cte("chosen")
        .prefix_with("MATERIALIZED")
        .c
    )
    # Ranks among the calls of the group with the same outcome: percentiles for both databases.
    alike: dict[str, Any] = {"partition_by": [chosen.group, chosen.ok]}
    at = (
        select(
            *chosen,
            func.row_number().over(order_by=chosen.latency_ms, **alike).label("rank"),
            func.count().over(**alike).label("of"),
        )
        .subquery()
        .c
    )

    def percentile(percent: int) -> ColumnElement[int]:
        return func.min(at.latency_ms).filter(at.ok, at.rank * 100 >= at.of * percent)

    order = [at.group] if by in {By.DAY, By.HOUR} else [func.count().desc(), at.group]
    query = (
        select(
            at.group,
            func.count().label("calls"),
            func.count().filter(~at.ok).label("failed"),
            func.avg(at.latency_ms).filter(at.ok).label("mean_ms"),
            percentile(50).label("p50_ms"),
            percentile(95).label("p95_ms"),
            func.sum(at.input_tokens).label("input_tokens"),
            func.sum(at.output_tokens).label("output_tokens"),
            func.sum(at.cost).label("cost"),
            func.min(at.created_at).label("first_at"),
            func.max(at.created_at).label("last_at"),
        )
        .group_by(at.group)
        .order_by(*order)
    )
    with context.db.read() as session:
        return [_stats(row) for row in session.execute(query)]


def total(context: Context, which: CallFilter = CallFilter()) -> CallStats | None:
    """Return the figures of all these calls together; None without calls."""
    return next(iter(stats(context, which)), None)


def summary(context: Context, which: CallFilter = CallFilter(), by: By = By.PROVIDER) -> CallSummary:
    """Return figures by group, and of all groups together."""
    return CallSummary(by, total(context, which), stats(context, which, by))


def costs(context: Context, flow: str, scope_ids: Sequence[str]) -> dict[str, float]:
    """Return the summed cost of the calls on record of each of these documents, runs or items of a flow; leave out ids
    without calls."""
    which = (CALLS.c.flow == flow, CALLS.c.scope_id.in_(scope_ids))
    query = select(CALLS.c.scope_id, func.sum(CALLS.c.cost)).where(*which).group_by(CALLS.c.scope_id)
    with context.db.read() as session:
        return {scope_id: float(cost) for scope_id, cost in session.execute(query)}


def retention(context: Context) -> Retention:
    """Return the retention rule of calls. Their totals outlive them."""
    limits = context.settings.retention
    rule = Rule(limits.calls_days, limits.calls_count)
    return rows("calls", rule, CALLS.c.id, CALLS.c.created_at, least=LEDGER_LEAST, discard=call_totals.remove)


def _group(context: Context, by: By | None) -> ColumnElement[str]:
    if by is None:
        return literal("")
    if by not in {By.DAY, By.HOUR}:
        return CALLS.c.scope_id if by is By.SCOPE else CALLS.c[by.value]
    return moment_of(context, by)


def moment_of(context: Context, by: By) -> ColumnElement[str]:
    """Return the SQL expression for the day or hour, in UTC, at which a call began, as `By` writes it."""
    if context.db.is_sqlite:
        return func.strftime("%Y-%m-%d" if by is By.DAY else "%Y-%m-%dT%H:00Z", CALLS.c.created_at)
    written = "YYYY-MM-DD" if by is By.DAY else 'YYYY-MM-DD"T"HH24:00"Z"'
    return func.to_char(func.timezone("UTC", CALLS.c.created_at), written)


def _stats(row: Any) -> CallStats:
    mean = None if row.mean_ms is None else round(float(row.mean_ms), 1)
    return view_of(
        CallStats, row, failure_rate=round(row.failed / row.calls, 4), mean_ms=mean, cost=round(float(row.cost), 6)
    )

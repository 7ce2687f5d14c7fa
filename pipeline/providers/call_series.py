"""Calls over time and by model, from one pass over the calls: for charts of many calls.

Percentiles come from counts by latency in steps of a quarter, so they are accurate to some percent. `calls.stats` is
exact, and costs several times as much.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, case, func, literal, select

from pipeline.providers.calls import CALLS, OK, By, CallFilter, CallSeries, CallStats, ModelStats, moment_of
from pipeline.storage.context import Context

EDGES_MS = tuple(round(10 ** (tenths / 10)) for tenths in range(10, 61))
"""From 10 ms to about a quarter of an hour."""
MOST_POINTS = 800
_LENGTH = {By.HOUR: timedelta(hours=1), By.DAY: timedelta(days=1)}


@dataclass
class _Sum:
    calls: int = 0
    failed: int = 0
    latency_ms: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    by_edge: Counter[int] = field(default_factory=Counter)
    """Successful calls, by the first edge that they did not exceed."""

    def add(self, row: Any) -> None:
        self.calls += row.calls
        self.input_tokens += row.input_tokens
        self.output_tokens += row.output_tokens
        self.cost += float(row.cost)
        if row.ok:
            self.latency_ms += int(row.latency_ms)
            self.by_edge[row.edge] += row.calls
        else:
            self.failed += row.calls

    def percentile(self, percent: int) -> int | None:
        wanted, below = (self.calls - self.failed) * percent / 100, 0
        for edge, calls in sorted(self.by_edge.items()):
            if below + calls >= wanted:
                least = max((lower for lower in EDGES_MS if lower < edge), default=0)
                return round(least + (edge - least) * (wanted - below) / calls)
            below += calls
        return None

    def stats(self, group: str) -> CallStats:
        went_well = self.calls - self.failed
        return CallStats(
            group,
            self.calls,
            self.failed,
            round(self.failed / self.calls, 4) if self.calls else 0.0,
            round(self.latency_ms / went_well, 1) if went_well else None,
            self.percentile(50),
            self.percentile(95),
            self.input_tokens,
            self.output_tokens,
            round(self.cost, 6),
            None,
            None,
        )


def series(context: Context, which: CallFilter, by: By) -> CallSeries:
    """Sum calls by `hour` or `day`, and by model, from `which.since` (or the first call) to `which.until` (or now).
    Only the newest `MOST_POINTS` hours or days are points."""
    c = CALLS.c
    of = (
        select(
            moment_of(context, by).label("at"),
            c.provider,
            c.model,
            (c.status == OK).label("ok"),
            _edge(c.latency_ms, EDGES_MS).label("edge"),
            c.latency_ms,
            c.input_tokens,
            c.output_tokens,
            c.cost,
        )
        .where(which.condition())
        .subquery()
        .c
    )
    key = (of["at"], of.provider, of.model, of.ok, of.edge)
    sums = (func.sum(of[name]).label(name) for name in ("latency_ms", "input_tokens", "output_tokens", "cost"))
    with context.db.read() as session:
        rows = session.execute(select(*key, func.count().label("calls"), *sums).group_by(*key)).all()
    moments: defaultdict[str, _Sum] = defaultdict(_Sum)
    models: defaultdict[tuple[str, str], _Sum] = defaultdict(_Sum)
    total = _Sum()
    for row in rows:
        for group in (moments[row.at], models[row.provider, row.model], total):
            group.add(row)
    known = sorted(models.items(), key=lambda item: (-item[1].calls, item[0]))
    began = which.since or (datetime.fromisoformat(min(moments)) if moments else context.db.now())
    return CallSeries(
        by,
        [moments[at].stats(at) for at in _moments(began, which.until or context.db.now(), by)],
        [ModelStats(*names, group.stats(" ".join(names))) for names, group in known],
        total.stats(""),
    )


def _edge(value: ColumnElement[int], edges: Sequence[int]) -> ColumnElement[int]:
    """Return the first of these edges that the value does not exceed, or the last; bisect, since every row needs it."""
    if len(edges) == 1:
        return literal(edges[0])
    half = len(edges) // 2
    return case((value <= edges[half - 1], _edge(value, edges[:half])), else_=_edge(value, edges[half:]))


def _moments(began: datetime, until: datetime, by: By) -> Iterator[str]:
    """Yield the hours or days of this time as `By` writes them; at most the newest `MOST_POINTS`."""
    length = _LENGTH[by]
    began = max(began, until - MOST_POINTS * length).astimezone(UTC)
    at = began.replace(hour=0 if by is By.DAY else began.hour, minute=0, second=0, microsecond=0)
    while at < until:
        yield f"{at:%Y-%m-%d}" if by is By.DAY else f"{at:%Y-%m-%dT%H:00Z}"
        at += length

"""Metrics from the database: work by state, calls to AI services, limits."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from pipeline.engine.metric_family import Counter, Gauge, label
from pipeline.flows import flows
from pipeline.providers import gates
from pipeline.providers.call_totals import BEYOND, EDGES_MS, Total, totals
from pipeline.providers.calls import OK
from pipeline.storage.context import Context
from pipeline.storage.tables import database_bytes


def families(context: Context) -> list[Metric]:
    """All metrics from the database. Raises the database's errors."""
    size = Gauge("penstock_database_size_bytes", "Size of the database, its indexes included.")
    size.put((), database_bytes(context.db))
    return [_units(context), *_calls(totals(context)), *_allowed(context), size]


def _units(context: Context) -> Metric:
    units = Gauge(
        "penstock_units", "Documents, pages, songs and other rows, by state.", labels=["flow", "kind", "state"]
    )
    for flow in flows():
        for kind, counted in flow.figures(context, also_none=True).items():
            for state, count in counted.items():
                units.put((flow.name, kind, state), count)
    return units


def _calls(all_calls: list[Total]) -> Iterator[Metric]:
    by = ["flow", "provider", "capability"]
    calls = Counter(
        "penstock_ai_calls", "Calls to AI services, by `ok` or the kind of the error.", labels=[*by, "status"]
    )
    tokens = Counter(
        "penstock_ai_tokens", "Tokens of calls to AI services, `input` and `output`.", labels=[*by, "direction"]
    )
    cost = Counter("penstock_ai_cost", "Cost of calls by the providers' price lists, in their currency.", labels=by)
    for key, group in _grouped(all_calls, lambda total: (total.flow, total.provider, total.capability, total.status)):
        calls.put(key, sum(total.calls for total in group))
    for key, group in _grouped(all_calls, lambda total: (total.flow, total.provider, total.capability)):
        tokens.put((*key, "input"), sum(total.input_tokens for total in group))
        tokens.put((*key, "output"), sum(total.output_tokens for total in group))
        cost.put(key, sum(total.cost_nano for total in group) / 10**9)
    yield from (calls, tokens, cost, _durations(all_calls))


def _durations(all_calls: list[Total]) -> Metric:
    took = HistogramMetricFamily(
        "penstock_ai_call_duration_seconds",
        "Duration of successful calls to AI services.",
        labels=["provider", "capability"],
    )
    ok = [total for total in all_calls if total.status == OK]
    for key, group in _grouped(ok, lambda total: (total.provider, total.capability)):
        count, buckets = 0, []
        for edge in (*EDGES_MS, BEYOND):
            count += sum(total.calls for total in group if total.le_ms == edge)
            buckets.append(("+Inf" if edge == BEYOND else str(edge / 1000), count))
        took.add_metric([label(name) for name in key], buckets, sum(total.latency_ms for total in group) / 1000)
    return took


def _grouped(
    calls: Iterable[Total], key: Callable[[Total], tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], list[Total]]]:
    for name, group in groupby(sorted(calls, key=key), key):
        yield name, list(group)


def _allowed(context: Context) -> Iterator[Metric]:
    """The concurrency limits and daily spend caps of live settings, which every worker follows, also while Redis is
    down."""
    values = gates.live_values(context)
    slots = Gauge(
        "penstock_gate_concurrency_limit", "Calls allowed at the same time; 0: no limit.", labels=["scope", "name"]
    )
    cap = Gauge(
        "penstock_provider_daily_spend_cap",
        "Allowed cost of a provider's calls in a day, in its currency; 0: no cap.",
        labels=["provider"],
    )
    queues = context.gates.queues.values()
    for queue in queues:
        slots.put(("queue", queue.name), float(values[f"queue.{queue.name}.concurrency"].value or 0))
    for provider in sorted({queue.provider for queue in queues}):
        slots.put(("provider", provider), float(values[f"provider.{provider}.concurrency"].value or 0))
        cap.put((provider,), float(values[f"provider.{provider}.daily_spend_cap"].value or 0))
    yield from (slots, cap)

"""Metrics from the database: work by state, calls to AI services, what is allowed."""

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
    """All of them. Raises what databases raise."""
    size = Gauge("penstock_database_size_bytes", "Size of the database, its indexes included.")
    size.put((), database_bytes(context.db))
    return [_units(context), *_calls(totals(context)), *_allowed(context), size]


def _units(context: Context) -> Metric:
    units = Gauge(
        "penstock_units", "Rows that people follow, by flow, kind and state.", labels=["flow", "kind", "state"]
    )
    for flow in flows():
        for kind, counted in flow.figures(context, also_none=True).items():
            for state, count in counted.items():
                units.put((flow.name, kind, state), count)
    return units


def _calls(found: list[Total]) -> Iterator[Metric]:
    by = ["flow", "provider", "capability"]
    calls = Counter("penstock_ai_calls", "Calls to AI services, by how they ended.", labels=[*by, "status"])
    tokens = Counter("penstock_ai_tokens", "Tokens of calls to AI services.", labels=[*by, "direction"])
    cost = Counter("penstock_ai_cost", "Cost of calls by the providers' price lists, in their currency.", labels=by)
    for key, same in _grouped(found, lambda one: (one.flow, one.provider, one.capability, one.status)):
        calls.put(key, sum(one.calls for one in same))
    for key, same in _grouped(found, lambda one: (one.flow, one.provider, one.capability)):
        tokens.put((*key, "input"), sum(one.input_tokens for one in same))
        tokens.put((*key, "output"), sum(one.output_tokens for one in same))
        cost.put(key, sum(one.cost_nano for one in same) / 10**9)
    yield from (calls, tokens, cost, _durations(found))


def _durations(found: list[Total]) -> Metric:
    took = HistogramMetricFamily(
        "penstock_ai_call_duration_seconds",
        "How long calls to AI services took that succeeded.",
        labels=["provider", "capability"],
    )
    ok = [one for one in found if one.status == OK]
    for key, same in _grouped(ok, lambda one: (one.provider, one.capability)):
        count, buckets = 0, []
        for edge in (*EDGES_MS, BEYOND):
            count += sum(one.calls for one in same if one.le_ms == edge)
            buckets.append(("+Inf" if edge == BEYOND else str(edge / 1000), count))
        took.add_metric([label(name) for name in key], buckets, sum(one.latency_ms for one in same) / 1000)
    return took


def _grouped(
    found: Iterable[Total], key: Callable[[Total], tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], list[Total]]]:
    for name, same in groupby(sorted(found, key=key), key):
        yield name, list(same)


def _allowed(context: Context) -> Iterator[Metric]:
    """What live settings allow: in force on every worker, whatever Redis says."""
    values = gates.live_values(context)
    slots = Gauge(
        "penstock_gate_concurrency_limit", "Calls that may be under way at once; 0: no limit.", labels=["scope", "name"]
    )
    cap = Gauge(
        "penstock_provider_daily_spend_cap",
        "What a provider's calls may cost in a day, in its currency; 0: no cap.",
        labels=["provider"],
    )
    queues = context.gates.queues.values()
    for queue in queues:
        slots.put(("queue", queue.name), float(values[f"queue.{queue.name}.concurrency"].value or 0))
    for provider in sorted({queue.provider for queue in queues}):
        slots.put(("provider", provider), float(values[f"provider.{provider}.concurrency"].value or 0))
        cap.put((provider,), float(values[f"provider.{provider}.daily_spend_cap"].value or 0))
    yield from (slots, cap)

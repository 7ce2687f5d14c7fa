"""Prometheus metrics of one instance. The API serves those of the whole fleet."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pipeline.engine.metric_family import Counter, Gauge

disable_created_metrics()  # type: ignore[no-untyped-call]  # it adds a useless gauge to each counter
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_EDGES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


def dispatch_histogram() -> Histogram:
    """Create the histogram of the time from a request's arrival until its job was sent to a node."""
    return Histogram(
        "penstock_gateway_dispatch_seconds",
        "Time from a request's arrival until the gateway gave its job to a node.",
        buckets=_EDGES_S,
        registry=None,
    )


@dataclass(frozen=True)
class Facts:
    """The figures of one instance."""

    redis_ops: Mapping[tuple[str, str], int]
    """`Store.ops`: counts by operation and outcome."""
    nodes: int
    sessions: int
    inbox_pending: int
    """Unhandled messages in the instance's inbox. -1: Redis is away."""
    dispatch: Histogram


class _Once(Collector):
    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        ops = Counter(
            "penstock_gateway_redis_op",
            "Operations of this instance on Redis, by `ok` or `error`.",
            labels=["op", "result"],
        )
        for (op, result), count in sorted(self._facts.redis_ops.items()):
            ops.put((op, result), count)
        connections = Gauge(
            "penstock_gateway_connections", "Connections of nodes and sessions to this instance.", labels=["kind"]
        )
        connections.put(("node",), self._facts.nodes)
        connections.put(("session",), self._facts.sessions)
        yield from (ops, connections)
        if self._facts.inbox_pending >= 0:
            pending = Gauge(
                "penstock_gateway_inbox_pending", "Messages in the inbox of this instance that it has not processed."
            )
            pending.put((), self._facts.inbox_pending)
            yield pending
        yield from self._facts.dispatch.collect()


def exposition(facts: Facts) -> bytes:
    """Return the instance's metrics as the body of `/metrics`, whose content type is `CONTENT_TYPE`."""
    registry = CollectorRegistry()
    registry.register(_Once(facts))
    return generate_latest(registry)

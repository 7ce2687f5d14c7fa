"""Families of metrics, and what their labels may hold."""

from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

_MOST_CHARS = 100


def label(value: object) -> str:
    """A value as a label: printable, cut. Names come from configuration, which may hold anything."""
    text = str(value)[:_MOST_CHARS]
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


class Gauge(GaugeMetricFamily):
    """A figure that goes up and down."""

    def put(self, values: Sequence[object], value: float) -> None:
        self.add_metric([label(one) for one in values], value)


class Counter(CounterMetricFamily):
    """A figure that only grows."""

    def put(self, values: Sequence[object], value: float) -> None:
        self.add_metric([label(one) for one in values], value)

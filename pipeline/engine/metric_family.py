"""Families of metrics, with printable labels."""

from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

_MOST_CHARS = 100


def label(value: object) -> str:
    """A value as a label: printable, and cut. Names from the configuration may hold any character."""
    text = str(value)[:_MOST_CHARS]
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


class Gauge(GaugeMetricFamily):
    """A metric that rises and falls."""

    def put(self, values: Sequence[object], value: float) -> None:
        self.add_metric([label(text) for text in values], value)


class Counter(CounterMetricFamily):
    """A metric that only grows."""

    def put(self, values: Sequence[object], value: float) -> None:
        self.add_metric([label(text) for text in values], value)

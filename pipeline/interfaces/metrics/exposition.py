"""A scrape: reads all parts at once, each within a time limit, and adds the metrics of the API's process."""

import shutil
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from platform import python_version

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pipeline.engine.metric_family import Gauge
from pipeline.interfaces.metrics import broker, fleet, rows
from pipeline.interfaces.metrics.part import Part
from pipeline.interfaces.metrics.requests import RequestMetrics
from pipeline.storage.context import Context

disable_created_metrics()  # type: ignore[no-untyped-call]  # else a `_created` gauge stands beside each counter
PATIENCE_S = 4.0
"""Seconds that a scrape waits for database and Redis together: Prometheus allows ten."""


class Exposition(Collector):
    """All metrics of one API process, and the counters of its requests."""

    def __init__(self, context: Context, patience_s: float = PATIENCE_S) -> None:
        self._context = context
        self._patience_s = patience_s
        self._parts = (
            Part("database", partial(rows.families, context)),
            Part("redis", partial(broker.families, context)),
            Part("gateway", partial(fleet.families, context)),
        )
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self.requests = RequestMetrics(self._registry)
        self._registry.register(self)

    def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """(the text, its content type), in the format that the header `Accept` asks for."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # it raises for malformed versions
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type

    def close(self) -> None:
        """Start no further reads, and wait for those under way, in all as long as a scrape would. Call it before the
        context closes."""
        deadline = time.monotonic() + self._patience_s
        for part in self._parts:
            part.close(deadline - time.monotonic())

    def collect(self) -> Iterator[Metric]:
        """All metrics, for the registry. Omits a part that cannot be read; `penstock_up` says so."""
        deadline = time.monotonic() + self._patience_s
        up = Gauge(
            "penstock_up",
            "1 if the API could read `database`, `redis` or `gateway`: the gateway's Redis.",
            labels=["part"],
        )
        took = Gauge("penstock_scrape_duration_seconds", "Duration of this part's last read.", labels=["part"])
        for part in self._parts:
            part.begin()
        for part in self._parts:
            metrics = part.families(deadline - time.monotonic())
            up.put((part.name,), metrics is not None)
            took.put((part.name,), part.took_s)
            yield from metrics or ()
        yield from (up, took, *self._local())

    def _local(self) -> Iterator[Metric]:
        build = Gauge(
            "penstock_build_info",
            "Always 1; its labels are the versions and the kind of the database.",
            labels=["version", "python", "database"],
        )
        kind = "sqlite" if self._context.db.is_sqlite else "postgresql"
        build.put((version("penstock"), python_version(), kind), 1)
        yield build
        free = Gauge("penstock_disk_free_bytes", "Free bytes on the data folder's disk.")
        size = Gauge("penstock_disk_size_bytes", "Size of the data folder's disk.")
        try:
            disk = shutil.disk_usage(self._context.settings.data_dir)
        except OSError:
            return
        free.put((), disk.free)
        size.put((), disk.total)
        yield from (free, size)

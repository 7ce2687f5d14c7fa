"""A scrape: all parts read at once, each bounded in time, and what the API's process knows by itself."""

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

disable_created_metrics()  # type: ignore[no-untyped-call]  # a gauge beside each counter, which nobody asks for
PATIENCE_S = 4.0
"""How long a scrape waits for database and Redis together: Prometheus gives it ten seconds."""


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
        except (TypeError, ValueError):  # it stumbles over versions that are none
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type

    def close(self) -> None:
        """Read no more: the context is about to be closed. Waits for reads under way as long as a scrape does."""
        deadline = time.monotonic() + self._patience_s
        for part in self._parts:
            part.close(deadline - time.monotonic())

    def collect(self) -> Iterator[Metric]:
        """For the registry. What cannot be read now is missing, and `penstock_up` says so."""
        deadline = time.monotonic() + self._patience_s
        up = Gauge("penstock_up", "1 if this part could be read, else 0.", labels=["part"])
        took = Gauge("penstock_scrape_duration_seconds", "How long this part took to read, last time.", labels=["part"])
        for part in self._parts:
            part.begin()
        for part in self._parts:
            found = part.families(deadline - time.monotonic())
            up.put((part.name,), found is not None)
            took.put((part.name,), part.took_s)
            yield from found or ()
        yield from (up, took, *self._local())

    def _local(self) -> Iterator[Metric]:
        build = Gauge(
            "penstock_build_info", "Always 1; its labels say what runs.", labels=["version", "python", "database"]
        )
        kind = "sqlite" if self._context.db.is_sqlite else "postgresql"
        build.put((version("penstock"), python_version(), kind), 1)
        yield build
        free = Gauge("penstock_disk_free_bytes", "Room left where the data folder is.")
        size = Gauge("penstock_disk_size_bytes", "Size of the disk that the data folder is on.")
        try:
            disk = shutil.disk_usage(self._context.settings.data_dir)
        except OSError:
            return
        free.put((), disk.free)
        size.put((), disk.total)
        yield from (free, size)

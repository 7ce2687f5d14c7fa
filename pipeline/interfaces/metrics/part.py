"""One source of metrics. A thread of its own reads it seldom enough to cost little; scrapes wait for a limited time."""

import threading
import time
from collections.abc import Callable, Sequence

import structlog
from prometheus_client.metrics_core import Metric

log = structlog.get_logger(__name__)
KEPT_S = 2.0
"""Seconds for which scrapes reuse a read, at least."""
LONGEST_KEPT_S = 60.0
_SHARE = 9
"""Rest this many times as long as reading took, so that scrapes cost at most a tenth of a processor."""


class Part:
    """Reads a source in the background when a scrape asks, one read at a time.

    A scrape gets no metrics from a read that fails or takes too long. While a read hangs, no other begins.
    """

    def __init__(self, name: str, read: Callable[[], Sequence[Metric]]) -> None:
        self.name = name
        self._read = read
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()
        self._due = 0.0
        self._metrics: Sequence[Metric] | None = None
        self._away = self._closed = False
        self.took_s = 0.0
        """Duration of the last completed read."""

    def begin(self) -> None:
        """Start a thread that reads, unless a read is under way or recent, or the part is closed. Does not wait."""
        with self._lock:
            if self._ended.is_set() and time.monotonic() >= self._due and not self._closed:
                self._ended.clear()
                threading.Thread(target=self._run, name=f"metrics-{self.name}", daemon=True).start()

    def families(self, patience_s: float) -> Sequence[Metric] | None:
        """The metrics of the last read, after waiting for one under way; None if that read failed or takes longer than
        `patience_s`."""
        if not self._ended.wait(max(0.0, patience_s)):
            return None
        return self._metrics

    def close(self, patience_s: float) -> None:
        """Start no further reads, and wait up to `patience_s` for a read under way: its source closes next."""
        with self._lock:
            self._closed = True
        self._ended.wait(max(0.0, patience_s))

    def _run(self) -> None:
        started = time.monotonic()
        rest = _SHARE
        try:
            self._metrics = self._read()
            self._away = False
        except Exception as error:  # scrapes still serve the other parts
            rest, self._metrics = 0, None
            if not self._away and not self._closed:
                log.exception("metrics.part_away", part=self.name, error=type(error).__name__)
            self._away = True
        finally:
            self.took_s = time.monotonic() - started
            self._due = time.monotonic() + min(max(KEPT_S, rest * self.took_s), LONGEST_KEPT_S)
            self._ended.set()

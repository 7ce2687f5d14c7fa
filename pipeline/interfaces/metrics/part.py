"""One source of metrics, read in a thread of its own: seldom enough to cost little, and never waited for long."""

import threading
import time
from collections.abc import Callable, Sequence

import structlog
from prometheus_client.metrics_core import Metric

log = structlog.get_logger(__name__)
KEPT_S = 2.0
"""How long what was read is served, at least."""
LONGEST_KEPT_S = 60.0
_SHARE = 9
"""Rest this many times as long as reading took: scrapes cost a tenth of a processor at most, however large a table."""


class Part:
    """Reads when it is asked, in the background, once at a time. If reading fails or takes too long, there is nothing.

    A read that hangs is not waited for, and none other begins meanwhile.
    """

    def __init__(self, name: str, read: Callable[[], Sequence[Metric]]) -> None:
        self.name = name
        self._read = read
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()
        self._due = 0.0
        self._found: Sequence[Metric] | None = None
        self._away = self._closed = False
        self.took_s = 0.0
        """How long the last read took that ended."""

    def begin(self) -> None:
        """Start reading, unless that is under way, or was done a moment ago."""
        with self._lock:
            if self._ended.is_set() and time.monotonic() >= self._due and not self._closed:
                self._ended.clear()
                threading.Thread(target=self._run, name=f"metrics-{self.name}", daemon=True).start()

    def families(self, patience_s: float) -> Sequence[Metric] | None:
        """What was read, waiting for it for so long; None if the source is away, or too slow."""
        if not self._ended.wait(max(0.0, patience_s)):
            return None
        return self._found

    def close(self, patience_s: float) -> None:
        """Read no more, and wait so long for a read that is under way: what it reads from is about to be closed."""
        with self._lock:
            self._closed = True
        self._ended.wait(max(0.0, patience_s))

    def _run(self) -> None:
        begun = time.monotonic()
        rest = _SHARE
        try:
            self._found = self._read()
            self._away = False
        except Exception as error:  # the other parts are served
            rest, self._found = 0, None
            if not self._away and not self._closed:
                log.exception("metrics.part_away", part=self.name, error=type(error).__name__)
            self._away = True
        finally:
            self.took_s = time.monotonic() - begun
            self._due = time.monotonic() + min(max(KEPT_S, rest * self.took_s), LONGEST_KEPT_S)
            self._ended.set()

"""Memory of a worker: its main process and its children, sampled while it works."""

import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from benchmarks.support import BenchmarkError

INTERVAL_S = 0.05


@dataclass(frozen=True)
class Memory:
    """What processes hold, MB. PSS divides what is shared among those who share it; RSS counts it each time."""

    pss: float
    rss: float


def family_of(pid: int, name: str) -> psutil.Process:
    """The child of `pid` that is called `name`."""
    for child in psutil.Process(pid).children():
        if child.name() == name:
            return child
    raise BenchmarkError(f"process {pid} has no child called {name}")


def memory_of(main: psutil.Process) -> tuple[Memory, int]:
    """Memory of a process and its children now, and how many processes that were."""
    pss = rss = found = 0
    for member in [main, *main.children(recursive=True)]:
        try:
            lines = Path(f"/proc/{member.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it has ended
        values = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
        pss, rss, found = pss + values["Pss"], rss + values["Rss"], found + 1
    return Memory(pss * 1024 / 1e6, rss * 1024 / 1e6), found


class MemorySampler:
    """Looks about 20 times a second, as long as its `with` block lasts."""

    def __init__(self, main: psutil.Process) -> None:
        self._main = main
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self._seen: list[Memory] = []
        self.processes = 0

    def __enter__(self) -> "MemorySampler":
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._look()

    def _look(self) -> None:
        found, processes = memory_of(self._main)
        self._seen.append(found)
        self.processes = max(self.processes, processes)

    @property
    def samples(self) -> int:
        return len(self._seen)

    @property
    def first_pss_mb(self) -> float:
        return self._seen[0].pss

    @property
    def peak_pss_mb(self) -> float:
        return max(sample.pss for sample in self._seen)

    @property
    def peak_rss_mb(self) -> float:
        return max(sample.rss for sample in self._seen)

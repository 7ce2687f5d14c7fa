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
    """Memory of processes in MB. PSS divides a shared page among its processes; RSS counts it for each of them."""

    pss: float
    rss: float


def family_of(pid: int, name: str) -> psutil.Process:
    """Return the child of `pid` with this name."""
    for child in psutil.Process(pid).children():
        if child.name() == name:
            return child
    raise BenchmarkError(f"process {pid} has no child called {name}")


def memory_of(main: psutil.Process) -> tuple[Memory, int]:
    """Return the memory of a process and its children, and the number of these processes."""
    pss = rss = count = 0
    for member in [main, *main.children(recursive=True)]:
        try:
            lines = Path(f"/proc/{member.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it has ended
        values = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
        pss, rss, count = pss + values["Pss"], rss + values["Rss"], count + 1
    return Memory(pss * 1024 / 1e6, rss * 1024 / 1e6), count


class MemorySampler:
    """Samples memory about 20 times a second during its `with` block."""

    def __init__(self, main: psutil.Process) -> None:
        self._main = main
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self._seen: list[Memory] = []
        self.processes = 0

    def __enter__(self) -> "MemorySampler":
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        memory, processes = memory_of(self._main)
        self._seen.append(memory)
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

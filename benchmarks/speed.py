"""Speed and memory of local conversion, in a process that does nothing else: `python -m benchmarks.speed PDF`.

Prints one JSON object: `pages_per_s` of pages with a text layer on one core, the best of some rounds, and `peak_mb`,
the most memory (RSS) that the process had.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.converters import penstock

ROOT = Path(__file__).resolve().parents[1]
PAGES = range(10, 210)
ROUNDS = 3
LIMIT_S = 90
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def measure_apart(source: Path) -> dict[str, float]:
    """The figures by name, from a process of its own. Raises `subprocess.SubprocessError`."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed", str(source)],
        cwd=ROOT, env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(source: Path) -> dict[str, float]:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    penstock(source, PAGES[:10])  # imports, fonts
    best_s = min(_timed_s(source) for _ in range(ROUNDS))
    return {"pages_per_s": round(len(PAGES) / best_s, 1), "peak_mb": round(peak_mb(), 1)}


def _timed_s(source: Path) -> float:
    begun = time.perf_counter()
    penstock(source, PAGES)
    return time.perf_counter() - begun


def peak_mb() -> float:
    status = Path("/proc/self/status")
    if status.is_file():
        # Of this program alone: `ru_maxrss` has the peak of the process that started it as well.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))

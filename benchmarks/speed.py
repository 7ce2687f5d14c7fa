"""Speed and memory of local conversion, in a process of its own: `python -m benchmarks.speed PDF [--quick]`.

Prints one JSON object. `pages_per_s`: pages with a text layer on one core, the best of several rounds;
`model_pages_per_s`: the same with the layout model on each page; `peak_mb`: the peak memory (RSS) of the process and of
the child that reads for it.
"""

import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.converters import page_by_page
from benchmarks.support import ROOT
from pipeline.providers.local import LocalConverter
from pipeline.settings import Settings

PAGES = range(10, 210)
MODEL_PAGES = range(10, 40)
ROUNDS = 3
LIMIT_S = 200
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def measure_apart(source: Path, *, quick: bool) -> dict[str, float]:
    """Measure in a process of its own and return the figures by name. Raises `subprocess.SubprocessError`."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed", str(source), *(["--quick"] if quick else [])],
        cwd=ROOT,
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(source: Path, *, quick: bool) -> dict[str, float]:
    pages, model_pages, rounds = (PAGES[:10], MODEL_PAGES[:2], 1) if quick else (PAGES, MODEL_PAGES, ROUNDS)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    usual = LocalConverter(Settings())
    page_by_page(usual, source, PAGES[:10])  # imports, fonts
    rates = {"pages_per_s": _rate(usual, source, pages, rounds)}
    with_model = LocalConverter(Settings(reading={"layout": "model"}))
    page_by_page(with_model, source, PAGES[:1])  # loads the model
    rates["model_pages_per_s"] = _rate(with_model, source, model_pages, min(rounds, 2))
    readers = psutil.Process().children(recursive=True)
    return {**rates, "peak_mb": round(peak_mb() + sum(peak_mb(str(reader.pid)) for reader in readers), 1)}


def _rate(converter: LocalConverter, source: Path, pages: range, rounds: int) -> float:
    """Return the pages a second of the best round."""
    best_s = math.inf
    for _ in range(rounds):
        started = time.perf_counter()
        page_by_page(converter, source, pages)
        best_s = min(best_s, time.perf_counter() - started)
    return round(len(pages) / best_s, 1)


def peak_mb(process: str = "self") -> float:
    status = Path("/proc", process, "status")
    if status.is_file():
        # This program alone: `ru_maxrss` also has the peak of the parent process.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), quick="--quick" in sys.argv)))

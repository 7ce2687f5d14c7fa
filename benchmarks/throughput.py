"""Converting 619 pages on a running stack, beside a bare pool of processes that calls the same converter."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.pool import Pool
from multiprocessing.util import Finalize
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.memory import MemorySampler, family_of, memory_of
from benchmarks.suite import Figures
from benchmarks.support import BenchmarkError, big_document, completed, progress, spread, stack
from pipeline.providers.local import LocalConverter
from pipeline.reading.pdf import conversion
from pipeline.settings import LOCAL, get_settings

CHUNK = 10
TIMEOUT_S = 200
ENOUGH_S = 25
"""No further round starts after this time, so that a slow machine ends within the limit."""


@dataclass(frozen=True)
class Run:
    """The times of a conversion. `convert_s`: from the first page's start to the last page's commit."""

    convert_s: float
    total_s: float


def measure(rounds: int = 7, pages: int = 619) -> Figures:
    """Measure pages_per_s_ratio and worker_peak_mb."""
    source = big_document()
    processes = get_settings().documents.converter_count
    bare: list[float] = []
    runs: list[Run] = []
    with stack() as pid, bare_pool(source, processes, pages) as pool:
        worker = family_of(pid, "worker-cpu")
        idle, _ = memory_of(worker)
        progress("warming up")
        run(source, pages)
        bare_s(pool, pages)
        # In turns, so that other load on the machine slows down both.
        started = time.monotonic()
        for number in range(rounds):
            if number >= 3 and time.monotonic() - started > ENOUGH_S:
                break
            progress(f"{pages} pages, round {number + 1}")
            bare.append(bare_s(pool, pages))
            runs.append(run(source, pages))
        peak = peak_memory(worker, source, pages)
    return _rates(bare, runs, pages) | {
        "processes": processes,
        "worker_peak_mb": round(peak.peak_pss_mb),
        "just started, MB": round(idle.pss),
        "before this document, MB": round(peak.first_pss_mb),
        "sum of RSS at its peak, MB": round(peak.peak_rss_mb),
        "samples": f"{peak.samples} of {peak.processes} processes",
    }


def _rates(bare: list[float], runs: list[Run], pages: int) -> Figures:
    ours_s, bare_median_s = median(run.convert_s for run in runs), median(bare)
    return {
        "pages_per_s_ratio": round(bare_median_s / ours_s, 3),
        "Penstock, converting: median, pages/s": round(pages / ours_s),
        "Penstock, submit to COMPLETED: median, pages/s": round(pages / median(run.total_s for run in runs)),
        "bare pool: median, pages/s": round(pages / bare_median_s),
        "ratio of the best runs": round(min(bare) / min(run.convert_s for run in runs), 3),
        "Penstock, converting": spread([run.convert_s for run in runs], "s"),
        "Penstock, submit to COMPLETED": spread([run.total_s for run in runs], "s"),
        "bare pool": spread(bare, "s"),
    }


def run(source: Path, pages: int) -> Run:
    """Convert this many of the document's pages once through the stack."""
    from tasks.documents import attempts, submit

    started = time.monotonic()
    document = completed(submit(source, pages=f"1-{pages}", fresh=True, provider=LOCAL), TIMEOUT_S)
    total_s = time.monotonic() - started
    if document.completed_count != pages:
        raise BenchmarkError(f"{document.completed_count} of {pages} pages were converted")
    ledger = attempts(document.id)
    # The commit of pages writes their rows. The first batch is one page, so its row has that page's start as well.
    first = min(attempt.created_at - timedelta(milliseconds=attempt.latency_ms) for attempt in ledger)
    last = max(attempt.created_at for attempt in ledger)
    return Run((last - first).total_seconds(), total_s)


def peak_memory(worker: psutil.Process, source: Path, pages: int) -> MemorySampler:
    """Sample the memory of the cpu worker and its pool during a further conversion, since sampling takes time."""
    progress("memory of the cpu worker")
    with MemorySampler(worker) as sampler:
        run(source, pages)
    return sampler


_open: dict[str, Any] = {}
"""The source of a process of the bare pool."""


@contextmanager
def bare_pool(source: Path, processes: int, pages: int) -> Iterator[Pool]:
    """Run processes that have the surveyed document open. They read it themselves, without a child."""
    options = LocalConverter(get_settings())._options
    survey = conversion.survey(source, range(1, pages + 1), options, lambda: None)
    pool = multiprocessing.get_context("spawn").Pool(processes, _begin, (source, survey))
    try:
        yield pool
        pool.close()
        pool.join()
    finally:
        pool.terminate()


def _begin(source: Path, survey: str) -> None:
    opened = conversion.open_source(source, LocalConverter(get_settings())._options, survey)
    _open["source"] = opened.__enter__()
    Finalize(None, opened.__exit__, (None, None, None), exitpriority=1)


def _convert(number: int) -> str:
    text: str = _open["source"].convert(number).text
    return text


def bare_s(pool: Pool, pages: int) -> float:
    """Return the seconds in which the bare pool converts this many pages."""
    started = time.monotonic()
    texts = pool.map(_convert, range(1, pages + 1), chunksize=CHUNK)
    took_s = time.monotonic() - started
    if len(texts) != pages:
        raise BenchmarkError("the bare pool lost pages")
    return took_s

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
from benchmarks.report import Report, spread
from benchmarks.support import BenchmarkError, big_document, progress, stack
from pipeline.reading import conversion, ocr
from pipeline.settings import LOCAL, get_settings

PAGES = 619
CHUNK = 10
TIMEOUT_S = 60
ENOUGH_S = 25
"""After this long no further round begins, so that a slow machine gets to the end too."""


@dataclass(frozen=True)
class Run:
    """One conversion. `convert_s`: from the first page's start to the last page's commit."""

    convert_s: float
    total_s: float


def measure(*, quick: bool) -> Report:
    """pages_per_s_ratio and worker_peak_mb."""
    source = big_document()
    processes = get_settings().documents.converter_count
    bare: list[float] = []
    runs: list[Run] = []
    with stack() as pid, bare_pool(source, processes) as pool:
        worker = family_of(pid, "cpu@%h")
        idle, _ = memory_of(worker)
        progress("warming up")
        run(source)
        bare_s(pool)
        # In turn, so that whatever else the machine does slows down both.
        begun = time.monotonic()
        for number in range(3 if quick else 7):
            if number >= 3 and time.monotonic() - begun > ENOUGH_S:
                break
            progress(f"619 pages, round {number + 1}")
            bare.append(bare_s(pool))
            runs.append(run(source))
        peak = peak_memory(worker, source)
    report = _report(bare, runs, processes)
    report.figure("worker_peak_mb", peak.peak_pss_mb)
    report.fact("just started", f"{idle.pss:.0f} MB")
    report.fact("before this document", f"{peak.first_pss_mb:.0f} MB")
    report.fact("sum of RSS at its peak", f"{peak.peak_rss_mb:.0f} MB")
    report.fact("samples", f"{peak.samples} of {peak.processes} processes")
    return report


def _report(bare: list[float], runs: list[Run], processes: int) -> Report:
    report = Report()
    ours_s, bare_median_s = median(run.convert_s for run in runs), median(bare)
    report.figure("pages_per_s_ratio", bare_median_s / ours_s)
    report.fact("processes", str(processes))
    report.fact("Penstock, converting: median", f"{PAGES / ours_s:.0f} pages/s")
    report.fact("Penstock, submit to COMPLETED: median", f"{PAGES / median(r.total_s for r in runs):.0f} pages/s")
    report.fact("bare pool: median", f"{PAGES / bare_median_s:.0f} pages/s")
    report.fact("ratio of the best runs", f"{min(bare) / min(run.convert_s for run in runs):.3f}")
    report.fact("Penstock, converting", spread([run.convert_s for run in runs], "s"))
    report.fact("Penstock, submit to COMPLETED", spread([run.total_s for run in runs], "s"))
    report.fact("bare pool", spread(bare, "s"))
    return report


def run(source: Path) -> Run:
    """Convert the document once through the stack."""
    from tasks.documents import attempts, submit

    begun = time.monotonic()
    document = submit(source, fresh=True, provider=LOCAL).wait(TIMEOUT_S)
    total_s = time.monotonic() - begun
    if document.status.name != "COMPLETED" or document.completed_count != PAGES:
        raise BenchmarkError(f"the document is {document.status.name}: {document.error}")
    ledger = attempts(document.id)
    # A row is written when its page is committed; of the first batch, which is one page, that is its start as well.
    first = min(attempt.created_at - timedelta(milliseconds=attempt.latency_ms) for attempt in ledger)
    last = max(attempt.created_at for attempt in ledger)
    return Run((last - first).total_seconds(), total_s)


def peak_memory(worker: psutil.Process, source: Path) -> MemorySampler:
    """Memory of the cpu worker and its pool while it converts once more; apart, since looking costs time."""
    progress("memory of the cpu worker")
    with MemorySampler(worker) as sampler:
        run(source)
    return sampler


_open: dict[str, Any] = {}
"""Of a process of the bare pool: its source."""


@contextmanager
def bare_pool(source: Path, processes: int) -> Iterator[Pool]:
    """Processes that have the document open and do nothing else. What they read with is not in a child process."""
    pool = multiprocessing.get_context("spawn").Pool(processes, _begin, (source,))
    try:
        yield pool
        pool.close()
        pool.join()
    finally:
        pool.terminate()


def _begin(source: Path) -> None:
    settings = get_settings().documents
    options = conversion.Options(
        dpi=settings.ocr_dpi, pictures=settings.ocr_pictures, max_pixels=ocr.pixels_at(settings.ocr_dpi),
        threads=ocr.threads_for(settings.converter_count), page_s=settings.page_timeout_s,
    )  # fmt: skip
    opened = conversion.open_source(source, options)
    _open["source"] = opened.__enter__()
    Finalize(None, opened.__exit__, (None, None, None), exitpriority=1)


def _convert(number: int) -> str:
    text: str = _open["source"].convert(number).text
    return text


def bare_s(pool: Pool) -> float:
    """Seconds in which the bare pool converts all pages."""
    begun = time.monotonic()
    texts = pool.map(_convert, range(1, PAGES + 1), chunksize=CHUNK)
    took_s = time.monotonic() - begun
    if len(texts) != PAGES:
        raise BenchmarkError("the bare pool lost pages")
    return took_s

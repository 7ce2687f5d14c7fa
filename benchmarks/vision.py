"""A provider with 32 places, each call 1 s: how much of it one worker uses."""

import os
import time
from typing import Any

from benchmarks.report import Report
from benchmarks.support import BenchmarkError, ask, progress, provider_server, stack, tiny_pages
from pipeline.settings import get_settings
from pipeline.storage.context import forget_context

PLACES = 32
LATENCY_S = 1.0
PROVIDER = "sample"


def measure(*, quick: bool) -> Report:
    """provider_utilisation."""
    pages = 96 if quick else 320
    with provider_server("--latency", str(LATENCY_S), "--max-concurrent", str(PLACES)) as url:
        use_provider(url)
        with stack():
            progress("warming up")
            _convert(tiny_pages("warm-up", 1))
            ask(url, "__script", {"reset": True})
            progress(f"{pages} pages with 32 calls at once, {pages / PLACES * LATENCY_S:.0f} s at best")
            total_s = _convert(tiny_pages("vision", pages))
            stats = ask(url, "__stats")
    return _report(stats, pages, total_s)


def _report(stats: dict[str, Any], pages: int, total_s: float) -> Report:
    answered = [record["time"] for record in stats["records"] if record["status"] == 200]
    if len(answered) != pages:
        raise BenchmarkError(f"{pages} pages took {len(answered)} answers: {stats['by_status']}")
    if stats["max_concurrent"] > PLACES:
        raise BenchmarkError(f"the provider saw {stats['max_concurrent']} calls at once: {stats['by_status']}")
    first = min(record["time"] for record in stats["records"])
    span_s = max(answered) + LATENCY_S - first
    ideal_s = pages / PLACES * LATENCY_S
    report = Report()
    report.figure("provider_utilisation", ideal_s / span_s)
    report.fact("first call to last reply", f"{span_s:.2f} s")
    report.fact("at best", f"{ideal_s:.2f} s")
    report.fact("submit to COMPLETED", f"{total_s:.2f} s")
    report.fact("most calls at once", str(stats["max_concurrent"]))
    report.fact("rejections", str(stats["calls"] - len(answered)))
    report.fact("time to fill all places", f"{sorted(answered)[PLACES - 1] - first:.2f} s")
    return report


def _convert(source: Any) -> float:
    from tasks.documents import submit

    begun = time.monotonic()
    document = submit(source, fresh=True, provider=PROVIDER).wait(60)
    if document.status.name != "COMPLETED":
        raise BenchmarkError(f"the document is {document.status.name}: {document.error}")
    return time.monotonic() - begun


def use_provider(url: str, concurrency: int = PLACES) -> None:
    """Make the server known to this process and to those that it starts. Before `tasks` is imported."""
    fields = {"BASE_URL": f"{url}/v1", "API_KEY": "none", "MODEL": "vision", "CONCURRENCY": str(concurrency)}
    os.environ |= {f"PENSTOCK_PROVIDERS__{PROVIDER.upper()}__{name}": value for name, value in fields.items()}
    get_settings.cache_clear()
    forget_context()

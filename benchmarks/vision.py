"""One worker's use of a provider with 32 places and calls of 1 s."""

import time
from pathlib import Path
from typing import Any

from benchmarks.suite import Figures
from benchmarks.support import (
    PROVIDER,
    BenchmarkError,
    ask,
    completed,
    progress,
    provider_server,
    stack,
    tiny_pages,
    use_provider,
)

PLACES = 32
LATENCY_S = 1.0


def measure(pages: int = 320) -> Figures:
    """Measure provider_utilisation."""
    with provider_server("--latency", str(LATENCY_S), "--max-concurrent", str(PLACES)) as url:
        use_provider(url, concurrency=PLACES)
        with stack():
            progress("warming up")
            _convert(tiny_pages("warm-up", 1))
            ask(url, "__script", {"reset": True})
            progress(f"{pages} pages with 32 calls at once, {pages / PLACES * LATENCY_S:.0f} s at best")
            total_s = _convert(tiny_pages("vision", pages))
            stats = ask(url, "__stats")
    return _use(stats, pages) | {"submit to COMPLETED, s": round(total_s, 2)}


def _use(stats: dict[str, Any], pages: int) -> Figures:
    answered = [record["time"] for record in stats["records"] if record["status"] == 200]
    if len(answered) != pages:
        raise BenchmarkError(f"{pages} pages took {len(answered)} answers: {stats['by_status']}")
    if stats["max_concurrent"] > PLACES:
        raise BenchmarkError(f"the provider saw {stats['max_concurrent']} calls at once: {stats['by_status']}")
    first = min(record["time"] for record in stats["records"])
    span_s = max(answered) + LATENCY_S - first
    ideal_s = pages / PLACES * LATENCY_S
    return {
        "provider_utilisation": round(ideal_s / span_s, 3),
        "first call to last reply, s": round(span_s, 2),
        "at best, s": round(ideal_s, 2),
        "most calls at once": stats["max_concurrent"],
        "rejections": stats["calls"] - len(answered),
        "time to fill all places, s": round(sorted(answered)[PLACES - 1] - first, 2),
    }


def _convert(source: Path) -> float:
    from tasks.documents import submit

    started = time.monotonic()
    completed(submit(source, fresh=True, provider=PROVIDER), 60)
    return time.monotonic() - started

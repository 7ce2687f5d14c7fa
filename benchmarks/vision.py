"""A provider with 32 places, each call 1 s: how much of it one worker uses."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.report import Report
from benchmarks.support import ROOT, BenchmarkError, progress, stack, stop, tiny_pages
from pipeline.settings import get_settings
from pipeline.storage.context import forget_context

PLACES = 32
LATENCY_S = 1.0
PROVIDER = "sample"


def measure(*, quick: bool) -> Report:
    """provider_utilisation."""
    pages = 96 if quick else 320
    with provider_server() as url:
        use_provider(url)
        with stack():
            progress("warming up")
            _convert(tiny_pages("warm-up", 1))
            _ask(url, "__script", {"reset": True})
            progress(f"{pages} pages with 32 calls at once, {pages / PLACES * LATENCY_S:.0f} s at best")
            total_s = _convert(tiny_pages("vision", pages))
            stats = _ask(url, "__stats")
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


@contextmanager
def provider_server() -> Iterator[str]:
    """A provider in a process of its own; its address."""
    command = [sys.executable, "-m", "tests.support.provider_server"]
    options = ["--latency", str(LATENCY_S), "--max-concurrent", str(PLACES)]
    running = subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout
        url = running.stdout.readline().strip().removesuffix("/v1")
        if not url:
            raise BenchmarkError("the provider server did not start")
        yield url
    finally:
        stop(running)


def _ask(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{url}/{path}", data, timeout=10) as reply:
        return json.load(reply)

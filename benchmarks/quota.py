"""A rate-limited provider: Penstock's gates beside plain Celery tasks that retry with back-off.

Two workers with thread pools call a provider that allows ten calls a second and takes 0.3 s for each. Small jobs of 3
calls come while the large job is under way.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.suite import Figures
from benchmarks.support import (
    PROVIDER,
    START_S,
    ask,
    celery_worker,
    celery_workers,
    completed,
    embedded_redis,
    percentile,
    process,
    progress,
    provider_server,
    tiny_pages,
    use_provider,
    wait_until,
)
from pipeline.engine.connection import connect
from pipeline.engine.gate import Gate, Window
from pipeline.process import get_context
from pipeline.settings import get_settings
from pipeline.storage.schema import migrate

RATE = 10
LATENCY_S = 0.3
CONCURRENCY = 6
SMALL = 3
SMALL_AFTER_S = 5.0
TIMEOUT_S = 240


@dataclass(frozen=True)
class Outcome:
    """The figures of Penstock or of plain Celery."""

    quota_used: float
    rejections: int
    small_jobs_s: list[float]


def measure_gates(calls: int = 300, jobs: int = 1) -> Figures:
    """Measure quota_used, rejections and small_job_s: a long document, and small documents beside it in sequence."""
    progress(f"{calls} calls through a gate, {jobs} small jobs among them")
    with embedded_redis(), _provider() as url:
        outcome = _penstock(url, calls, jobs)
    times = outcome.small_jobs_s
    return {
        "quota_used": round(outcome.quota_used, 3),
        "rejections": outcome.rejections,
        "small_job_s": round(percentile(times, 0.95), 2),
        "small jobs, fastest, median, slowest, s": f"{min(times):.2f} {percentile(times, 0.5):.2f} {max(times):.2f}",
    }


def measure_plain(calls: int = 300) -> Figures:
    """Measure plain_quota_used, plain_rejections and plain_small_job_s."""
    progress(f"{calls} calls by plain Celery tasks")
    with embedded_redis(), _provider() as url:
        outcome = _plain(url, calls)
    return {
        "plain_quota_used": round(outcome.quota_used, 3),
        "plain_rejections": outcome.rejections,
        "plain_small_job_s": round(outcome.small_jobs_s[0], 2),
    }


def measure_admissions(window: int = 100_000, times: int = 1000, at_once: Sequence[int] = (2, 4, 8)) -> Figures:
    """Measure admission_ms: an admission with its stamp and finish, by size of the window and number of workers."""
    with embedded_redis():
        costs = {f"1 worker, window of {size:,}": _admission_ms(size, times) for size in (10, 1_000, window)}
        for workers in at_once:
            costs[f"{workers} workers, window of {window:,}"] = _admission_ms_at_once(workers, times)
    return {"admission_ms": costs["1 worker, window of 1,000"], **{f"{label}, ms": ms for label, ms in costs.items()}}


@contextmanager
def _provider() -> Iterator[str]:
    """Run a provider that allows `RATE` calls a second and takes `LATENCY_S` for each; yield its address."""
    with provider_server("--latency", str(LATENCY_S), "--limit-per-s", str(RATE)) as url:
        yield url


def _outcome(url: str, calls: int, small_jobs_s: list[float]) -> Outcome:
    records = ask(url, "__stats")["records"]
    good = sorted(record["time"] for record in records if record["status"] == 200)
    assert len(good) == calls, f"{len(good)} of {calls} calls were answered"
    # The calls of the first window need no wait: n calls need at least (n - 10) / 10 s.
    ideal_s = (calls - RATE) / RATE
    return Outcome(min(1.0, ideal_s / (good[-1] - good[0])), len(records) - len(good), small_jobs_s)


def _timed_beside(large: Callable[[], None], small: Callable[[], None], times: int = 1) -> list[float]:
    """Run small jobs in sequence, some seconds after the start of the large job; return the seconds of each."""
    thread = threading.Thread(target=large)
    thread.start()
    time.sleep(SMALL_AFTER_S)
    took_s = []
    for _ in range(times):
        started = time.monotonic()
        small()
        took_s.append(time.monotonic() - started)
    thread.join()
    return took_s


def _penstock(url: str, calls: int, jobs: int) -> Outcome:
    """Make this many calls through the documents flow, including the calls of the small jobs."""
    use_provider(url, limits=f"{RATE}/s", concurrency=CONCURRENCY)
    migrate(get_context().db)
    from tasks.documents import submit

    def convert(name: str, pages: int) -> None:
        completed(submit(tiny_pages(name, pages), provider=PROVIDER, fresh=True), TIMEOUT_S)

    queues = {"one": f"vision.{PROVIDER}", "two": f"vision.{PROVIDER}", "control": "control", "cpu": "cpu"}
    commands = {name: ("tasks", "-Q", queue, "-P", "threads", "-c", "8") for name, queue in queues.items()}
    with celery_workers(commands):
        large = calls - jobs * SMALL
        small_jobs_s = _timed_beside(lambda: convert("large", large), lambda: convert("small", SMALL), jobs)
    return _outcome(url, calls, small_jobs_s)


def _plain(url: str, calls: int) -> Outcome:
    os.environ |= {"PLAIN_REDIS": get_settings().broker_url, "PLAIN_PROVIDER": url}
    from celery import group

    from benchmarks.plain_tasks import app, call

    def run(numbers: range) -> None:
        group(call.s(number) for number in numbers).apply_async().get(timeout=TIMEOUT_S)

    with ExitStack() as running:
        for name in ("plain1", "plain2"):
            command = celery_worker(
                "benchmarks.plain_tasks", "-Q", "plain", "-P", "threads", "-c", "8", "-n", f"{name}@%h"
            )
            running.enter_context(process(command, get_settings().data_dir / f"{name}.log"))
        wait_until("the workers", lambda: len(app.control.ping(timeout=0.5)) == 2, START_S)
        small_jobs_s = _timed_beside(lambda: run(range(calls - SMALL)), lambda: run(range(SMALL)))
    return _outcome(url, calls, small_jobs_s)


def _gate() -> Gate:
    return Gate(connect(get_settings().effective_redis_url), "vision.cost", "cost:vision", 60)


def _admission_ms(window: int, times: int) -> float:
    """Return the milliseconds of an admission to a window that is nearly full."""
    progress(f"admissions to a window of {window:,}")
    own = _gate()
    own.own.configure([Window(window, 3600)], None)
    own.shared.configure([], None)
    for _ in range(window - 1 - own.inspect().windows[0].used):
        own.stamp("fill")
    started = time.perf_counter()
    for number in range(times):
        own.admit(str(number % 7))
    return round((time.perf_counter() - started) * 1000 / times, 3)


def _admission_ms_at_once(workers: int, times: int) -> float:
    """Return the same for processes that ask at once."""
    command = [sys.executable, "-m", "benchmarks.quota", str(times)]
    running = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(workers)
    ]
    for child in running:
        assert child.stdout
        child.stdout.readline()
    for child in running:
        assert child.stdin
        child.stdin.write("\n")
        child.stdin.flush()
    return round(sum(float(child.communicate(timeout=60)[0]) for child in running) / workers, 3)


def _admit(times: int, name: str) -> None:
    """Print `ready`, wait for a line, ask the gate this many times, and print the milliseconds of an admission."""
    own = _gate()
    own.admit("warm-up")
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    for number in range(times):
        own.admit(f"{name}-{number % 7}")
    print((time.perf_counter() - started) * 1000 / times)


if __name__ == "__main__":
    _admit(int(sys.argv[1]), sys.argv[2])

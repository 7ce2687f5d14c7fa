"""A rate-limited provider: Penstock's gates beside plain Celery tasks that try again with back-off, in one run.

300 calls, 10 a second, 0.3 s latency, two threads workers; a small job of 3 calls comes when the large one is under
way. Prints a table, and as its last line one JSON object. `python -m benchmarks.limits [--calls N]`
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

RATE = 10
LATENCY_S = 0.3
CONCURRENCY = 6
SMALL = 3
SMALL_AFTER_S = 5.0
AIMS = {"quota_used": "≥ 0.97", "rejections": "0", "small_job_s": "≤ 1.5", "admission_ms": "< 1"}


@dataclass(frozen=True)
class Outcome:
    """How one of the two did."""

    quota_used: float
    rejections: int
    small_jobs_s: list[float]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--calls", type=int, default=300)
    calls = arguments.parse_args().calls
    with tempfile.TemporaryDirectory(prefix="ps-", dir="/tmp") as folder, ExitStack() as open_:
        _settle_environment(folder)
        from benchmarks.support import embedded_redis, progress

        open_.enter_context(embedded_redis())
        progress("cost of an admission")
        costs = _admission_costs()
        progress(f"Penstock: {calls} calls")
        with provider() as url:
            ours = penstock(url, calls)
        progress(f"plain Celery: {calls} calls")
        with provider() as url:
            plain = _plain(url, calls)
    figures = _figures(ours, plain, costs)
    sys.stdout.flush()
    print(json.dumps(figures), flush=True)
    os._exit(0)  # at once: results that Celery still holds would ask a Redis that has ended


def _settle_environment(folder: str) -> None:
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]
    os.environ["PENSTOCK_DATA_DIR"] = folder
    os.environ["PENSTOCK_LOG_LEVEL"] = "WARNING"


def _figures(ours: Outcome, plain: Outcome, costs: dict[str, float]) -> dict[str, float]:
    figures = {
        "quota_used": round(ours.quota_used, 3), "rejections": ours.rejections,
        "small_job_s": round(ours.small_jobs_s[0], 2), "plain_quota_used": round(plain.quota_used, 3),
        "plain_rejections": plain.rejections, "plain_small_job_s": round(plain.small_jobs_s[0], 2),
        "admission_ms": costs["1 worker, window of 1,000"],
    }  # fmt: skip
    print(f"{'':28}{'PENSTOCK':>12}{'PLAIN':>12}  AIM")
    for key in ("quota_used", "rejections", "small_job_s"):
        print(f"{key:28}{figures[key]:>12}{figures[f'plain_{key}']:>12}  {AIMS[key]}")
    for what, cost_ms in costs.items():
        print(f"admission, {what:29}{cost_ms:>8} ms  {AIMS['admission_ms']} ms")
    return figures


@contextmanager
def provider() -> Iterator[str]:
    """A provider that allows `RATE` calls a second and takes `LATENCY_S` for each; its address."""
    from benchmarks.support import provider_server

    with provider_server("--latency", str(LATENCY_S), "--limit-per-s", str(RATE)) as url:
        yield url


def _outcome(url: str, calls: int, small_jobs_s: list[float]) -> Outcome:
    from benchmarks.support import ask

    records = ask(url, "__stats")["records"]
    good = sorted(record["time"] for record in records if record["status"] == 200)
    assert len(good) == calls, f"{len(good)} of {calls} calls were answered"
    # The first window is full at once: n calls need at least (n - 10) / 10 s.
    ideal_s = (calls - RATE) / RATE
    return Outcome(min(1.0, ideal_s / (good[-1] - good[0])), len(records) - len(good), small_jobs_s)


def _timed_beside(large: Callable[[], None], small: Callable[[], None], times: int = 1) -> list[float]:
    """Seconds of each small job, one after the other; the first begins some seconds after the large one."""
    thread = threading.Thread(target=large)
    thread.start()
    time.sleep(SMALL_AFTER_S)
    took_s = []
    for _ in range(times):
        begun = time.monotonic()
        small()
        took_s.append(time.monotonic() - begun)
    thread.join()
    return took_s


def penstock(url: str, calls: int, small_jobs: int = 1) -> Outcome:
    """So many calls by the documents flow, those of the small jobs among them."""
    fields = {"base_url": f"{url}/v1", "model": "m", "limits": f"{RATE}/s", "concurrency": CONCURRENCY}
    os.environ["PENSTOCK_PROVIDERS"] = json.dumps({"sample": fields})
    from benchmarks.support import celery_worker, process, tiny_pages
    from pipeline.settings import get_settings
    from pipeline.storage.context import forget_context, get_context
    from pipeline.storage.schema import migrate

    get_settings.cache_clear()
    forget_context()
    migrate(get_context().db)
    from tasks.documents import submit

    def convert(name: str, pages: int) -> None:
        document = submit(tiny_pages(name, pages), provider="sample", fresh=True).wait(240)
        assert document.status.name == "COMPLETED", document.error

    queues = {"one": "vision.sample", "two": "vision.sample", "control": "control", "cpu": "cpu"}
    with ExitStack() as running:
        for name, queue in queues.items():
            command = celery_worker("tasks", "-Q", queue, "-P", "threads", "-c", "8", "-n", f"{name}@%h")
            running.enter_context(process(command, Path(os.environ["PENSTOCK_DATA_DIR"]) / f"{name}.log"))
        wait_for_workers(len(queues))
        large = calls - small_jobs * SMALL
        small_jobs_s = _timed_beside(lambda: convert("large", large), lambda: convert("small", SMALL), small_jobs)
    return _outcome(url, calls, small_jobs_s)


def wait_for_workers(count: int) -> None:
    """Until so many workers say that they are alive."""
    from benchmarks.support import START_S, wait_until
    from pipeline.engine.presence import Presence
    from pipeline.storage.context import get_context

    wait_until("the workers", lambda: len(Presence(get_context().redis).alive()) >= count, START_S)


def _plain(url: str, calls: int) -> Outcome:
    from benchmarks.support import START_S, celery_worker, process, wait_until
    from pipeline.settings import get_settings

    os.environ |= {"PLAIN_REDIS": get_settings().broker_url, "PLAIN_PROVIDER": url}
    from celery import group

    from benchmarks.plain_tasks import app, call

    def run(numbers: range) -> None:
        group(call.s(number) for number in numbers).apply_async().get(timeout=240)

    with ExitStack() as running:
        for name in ("plain1", "plain2"):
            command = celery_worker(
                "benchmarks.plain_tasks", "-Q", "plain", "-P", "threads", "-c", "8", "-n", f"{name}@%h"
            )
            running.enter_context(process(command, Path(os.environ["PENSTOCK_DATA_DIR"]) / f"{name}.log"))
        wait_until("the workers", lambda: len(app.control.ping(timeout=0.5)) == 2, START_S)
        small_jobs_s = _timed_beside(lambda: run(range(calls - SMALL)), lambda: run(range(SMALL)))
    return _outcome(url, calls, small_jobs_s)


def _admission_costs() -> dict[str, float]:
    """Milliseconds of an admission with its stamp and finish, by workers asking at once and by the window's size."""
    from pipeline.engine.connection import connect
    from pipeline.engine.gate import Gate, Window
    from pipeline.settings import get_settings

    def gate() -> Gate:
        return Gate(connect(get_settings().effective_redis_url), "vision.cost", "cost:vision", 60)

    found: dict[str, float] = {}
    for size in (10, 1_000, 100_000):
        own = gate()
        own.own.configure([Window(size, 3600)], None)
        own.shared.configure([], None)
        while own.look().windows[0].used < size - 1:
            own.stamp("fill")
        begun = time.perf_counter()
        for number in range(1000):
            own.admit(str(number % 7))
        found[f"1 worker, window of {size:,}"] = round((time.perf_counter() - begun) * 1000 / 1000, 3)
    for workers in (2, 4, 8):
        found[f"{workers} workers, window of 100,000"] = _by_processes(workers)
    connect(get_settings().effective_redis_url).flushall()
    return found


def _by_processes(workers: int) -> float:
    program = (
        "import sys, time\nfrom pipeline.engine.connection import connect\nfrom pipeline.engine.gate import Gate\n"
        "from pipeline.settings import get_settings\n"
        "gate = Gate(connect(get_settings().effective_redis_url), 'vision.cost', 'cost:vision', 60)\n"
        "gate.admit('warm-up')\nsys.stdin.readline()\nbegun = time.perf_counter()\n"
        "for number in range(500): gate.admit(f'{sys.argv[1]}-{number % 7}')\n"
        "print((time.perf_counter() - begun) * 1000 / 500)\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for n in range(workers)
    ]
    time.sleep(2)
    for one in running:
        assert one.stdin
        one.stdin.write("\n")
        one.stdin.flush()
    return round(sum(float(one.communicate(timeout=60)[0]) for one in running) / workers, 3)


if __name__ == "__main__":
    sys.exit(main())

"""Gates: the use of a quota, the order of calls, and the cost of waiting.

`measure_order` sends numbered messages to one queue and inspects the order in which their calls reach the provider.
With room for `c` calls at once, the calls under way beside a message may overtake it, but no others: a call is a
violation if `c` or more messages sent before it have not arrived when it arrives. The part runs with `c` = 1, two
workers and a gate that is full most of the time, so any call out of order counts.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.suite import Figures
from benchmarks.support import (
    PROVIDER,
    ask,
    celery_workers,
    embedded_redis,
    progress,
    provider_server,
    use_provider,
    wait_until,
)
from pipeline.process import get_context
from pipeline.providers import gates, queue_control
from pipeline.storage.schema import migrate


def measure_order(messages: int = 300) -> Figures:
    """Measure fifo_violations: calls that overtake when two workers take messages in order, one call at a time."""
    with embedded_redis(), provider_server("--latency", "0.01") as url, _workers(url, 2, concurrency=1) as call:
        progress(f"{messages} messages, one call at a time")
        for number in range(messages):
            call.delay(number)
        wait_until("all calls", lambda: ask(url, "__stats?records=0")["calls"] >= messages, 50, every_s=0.2)
        records = ask(url, "__stats")["records"]
    arrived = [int(record["prompt"]) for record in sorted(records, key=lambda record: record["time"])]
    span_s = max(record["time"] for record in records) - min(record["time"] for record in records)
    return {
        "fifo_violations": violations(arrived, 1),
        "messages": messages,
        "calls/s, one at a time": round(len(records) / span_s, 1),
    }


def violations(arrived: Sequence[int], at_once: int) -> int:
    """Count the numbers that arrived before `at_once` or more smaller numbers."""
    waiting = sorted(arrived)
    overtakes = 0
    for number in arrived:
        overtakes += waiting.index(number) >= at_once
        waiting.remove(number)
    return overtakes


def measure_waiting(window_s: float = 10.0) -> Figures:
    """Measure redis_commands_per_s of an otherwise idle worker whose gate is full; the worse of two ways to be full."""
    with embedded_redis(), provider_server() as url, _workers(url, 1, concurrency=1, limits="10/h") as call:
        gate = gates.gate(get_context(), f"vision.{PROVIDER}")
        wait_until("the gate", lambda: gate.admit("elsewhere").granted, 10)
        for number in range(30):
            call.delay(number)
        by_slots = _commands_per_s(window_s / 2)
        gate.finish("elsewhere")
        wait_until("ten calls", lambda: ask(url, "__stats?records=0")["calls"] == 10, 30)
        by_window = _commands_per_s(window_s / 2)
    return {
        "redis_commands_per_s": round(max(by_window, by_slots), 1),
        "window full, commands/s": round(by_window, 1),
        "all slots taken, commands/s": round(by_slots, 1),
    }


def _commands_per_s(window_s: float) -> float:
    """Return the commands of Redis a second, including the commands of scripts."""
    redis = get_context().redis

    def count() -> int:
        return sum(int(stat["calls"]) for stat in redis.info("commandstats").values())

    time.sleep(1.5)  # until the worker waits
    before, started = count(), time.monotonic()
    time.sleep(window_s)
    return (count() - before) / (time.monotonic() - started)


@contextmanager
def _workers(url: str, count: int, *, limits: str = "", concurrency: int = 0) -> Iterator[Any]:
    """Run workers of `benchmarks.gated_tasks` that call the provider at `url` within these limits; yield their task."""
    use_provider(url, limits=limits)
    migrate(get_context().db)
    queue_control.change_setting(get_context(), f"provider.{PROVIDER}.concurrency", str(concurrency))
    from benchmarks.gated_tasks import call

    names = [f"gated{number}" for number in range(count)]
    with celery_workers(dict.fromkeys(names, ("benchmarks.gated_tasks", "-P", "threads", "-c", "8"))):
        yield call

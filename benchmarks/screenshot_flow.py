"""Screenshots on a running stack (SQLite, the embedded Redis), with a provider that takes half a second a call.

`measure_use`: the use of four calls at once by 1,000 frames in 200 batches. `measure_realtime`: the time of new batches
while 2,000 frames wait for recovery, beside the same on an idle stack.
"""

import hashlib
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from benchmarks.suite import Figures
from benchmarks.support import (
    PROVIDER,
    BenchmarkError,
    ask,
    percentile,
    progress,
    provider_server,
    stack,
    use_provider,
    use_settings,
    wait_until,
)
from pipeline.process import get_context
from pipeline.storage.context import Context

PLACES = 4
LATENCY_S = 0.5
BATCH = 5
FRAME_SIZE = (1280, 720)
PROVIDER_OPTIONS = (
    "--latency",
    str(LATENCY_S),
    "--max-concurrent",
    str(PLACES),
    "--answers",
    "tests.support.screenshot_model:answer",
)
OLD = timedelta(minutes=10)
"""Age of the backlog. Recovery takes batches from an age of five minutes."""
_numbers = itertools.count(1)


def measure_use(shots: int = 1000) -> Figures:
    """Measure provider_utilisation: seconds of calls, of the seconds of four calls at once."""
    with _running() as url:
        progress(f"{shots} frames, {2 * shots / BATCH / PLACES * LATENCY_S:.0f} s at best")
        batches = fill(get_context(), shots, datetime.now(UTC))
        started = time.monotonic()
        _launch()
        wait_until("all batches", partial(_all_done, batches), 120, every_s=0.1)
        total_s = time.monotonic() - started
        # The stages after a batch's nodes make no calls here: each batch is a thread of its own.
        seen = ask(url, "__stats?records=0")
    calls = 2 * shots // BATCH
    if seen["by_status"] != {"200": calls} or seen["max_concurrent"] > PLACES:
        raise BenchmarkError(f"{shots} frames are {calls} calls, {PLACES} at once, but the provider saw {seen}")
    return {
        "provider_utilisation": round(seen["busy_s"] / (PLACES * seen["span_s"]), 3),
        "first call to last reply, s": round(seen["span_s"], 1),
        "launch to the last batch, s": round(total_s, 1),
        "frames/s": round(shots / total_s, 1),
        "most calls at once": seen["max_concurrent"],
    }


def measure_realtime(backlog: int = 2000, samples: int = 20, every_s: float = 2.0) -> Figures:
    """Measure realtime_p95_ratio: a batch from creation to nodes beside a backlog, of the same on an idle stack."""
    with _running():
        progress("new batches on an idle stack")
        _one_after_another(2)
        idle = _seconds(_one_after_another(samples))
        progress(f"new batches while {backlog} frames wait for recovery")
        waiting = fill(get_context(), backlog, datetime.now(UTC) - OLD)
        _launch()
        wait_until("the first batches of the backlog", lambda: _done(waiting) >= PLACES, 60)
        busy = _seconds(_now_and_then(samples, every_s))
        remaining = len(waiting) - _done(waiting)
    if not remaining:
        raise BenchmarkError("the backlog was done before the last new batch, so it did not delay that batch")
    return {
        "realtime_p95_ratio": round(percentile(busy, 0.95) / percentile(idle, 0.95), 2),
        "new batch, idle: median, p95, s": f"{percentile(idle, 0.5):.2f}, {percentile(idle, 0.95):.2f}",
        "new batch, beside the backlog: median, p95, s": f"{percentile(busy, 0.5):.2f}, {percentile(busy, 0.95):.2f}",
        "batches of the backlog done beside them": len(waiting) - remaining,
    }


def fill(context: Context, count: int, at: datetime, source: str = "screen:1") -> list[int]:
    """Insert frames of the time `at` in batches of five without a message; return the ids of the batches."""
    from sqlalchemy import insert

    from pipeline.engine.tables import insert_if_absent
    from pipeline.flows.screenshots.frames import buffer
    from pipeline.flows.screenshots.models import SHOTS, SOURCES
    from pipeline.flows.screenshots.rules.batches import shot_of

    rows = [_stored(context, source, at, number) for number in itertools.islice(_numbers, count)]

    def work(session: Any) -> list[int]:
        insert_if_absent(session, SOURCES, {"key": source, "active": True, "created_at": at, "seen_at": at})
        buffer.lock_source(session, source)
        batches = []
        for start in range(0, len(rows), BATCH):
            some = [
                session.execute(insert(SHOTS).values(row).returning(SHOTS)).one() for row in rows[start : start + BATCH]
            ]
            shots, times = [shot_of(row) for row in some], [row.ts for row in some]
            batches.append(buffer.make(session, source, shots, times, context.settings.screenshots))
        return [batch for batch in batches if batch is not None]

    return context.db.run(work)


_pictures: dict[int, bytes] = {}


def _stored(context: Context, source: str, at: datetime, number: int) -> dict[str, Any]:
    """Write a frame's file and return its row. Forty pictures take turns, since their content does not matter here."""
    from tests.support.screenshot_model import frame_bytes

    kind = number % 40
    data = _pictures.setdefault(kind, b"") or frame_bytes(kind, ".jpg", FRAME_SIZE)
    _pictures[kind] = data
    folder = context.settings.screenshot_dir
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number}.jpg").write_bytes(data)
    digest = hashlib.sha256(f"{number}".encode()).hexdigest()
    return {
        "source_key": source,
        "ts": at + timedelta(milliseconds=number),
        "file": f"{number}.jpg",
        "sha256": digest,
        "phash": digest,
        "size_bytes": len(data),
        "app": "Editor",
        "window_title": f"Window {(number - 1) // BATCH}",
        "created_at": at,
        "updated_at": at,
    }


def _one_after_another(count: int) -> list[int]:
    batches = []
    for _ in range(count):
        batch = fill(get_context(), BATCH, datetime.now(UTC), "screen:2")
        _launch()
        wait_until("a new batch", partial(_all_done, batch), 60)
        batches += batch
    return batches


def _now_and_then(count: int, every_s: float) -> list[int]:
    batches = []
    for _ in range(count):
        batches += fill(get_context(), BATCH, datetime.now(UTC), "screen:2")
        _launch()
        time.sleep(every_s)
    wait_until("the new batches", lambda: _done(batches) == count, 60)
    return batches


def _launch() -> None:
    from pipeline.flows.screenshots.scopes import Scope
    from tasks.screenshots import canvas

    canvas.TASKS.launch(Scope.BATCHES)


def _all_done(batches: Sequence[int]) -> bool:
    return _done(batches) == len(batches)


def _done(batches: Sequence[int]) -> int:
    """Count the finished batches among these."""
    from sqlalchemy import func, select

    from pipeline.flows.screenshots.models import BATCHES

    ended = select(func.count()).where(BATCHES.c.id.in_(batches), BATCHES.c.finished_at.is_not(None))
    with get_context().db.read() as session:
        return int(session.execute(ended).scalar_one())


def _seconds(batches: Sequence[int]) -> list[float]:
    """Return the seconds of each batch from its creation to its nodes."""
    from sqlalchemy import select

    from pipeline.flows.screenshots.models import BATCHES

    with get_context().db.read() as session:
        rows = session.execute(select(BATCHES).where(BATCHES.c.id.in_(batches))).all()
    return [(row.finished_at - row.created_at).total_seconds() for row in rows]


@contextmanager
def _running() -> Iterator[str]:
    """Run a stack and a provider and warm them up; yield the provider's address."""
    with provider_server(*PROVIDER_OPTIONS) as url:
        use_provider(url)
        use_settings(PENSTOCK_SCREENSHOTS__VISION_PROVIDER=PROVIDER, PENSTOCK_SCREENSHOTS__TEXT_PROVIDER=PROVIDER)
        with stack():
            from pipeline.providers import queue_control

            queue_control.change_setting(get_context(), f"provider.{PROVIDER}.concurrency", str(PLACES))
            progress("warming up")
            _one_after_another(2)
            ask(url, "__script", {"reset": True})
            yield url

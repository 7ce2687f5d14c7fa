"""The cost of messages at the launch of a document of 2,000 pages, beside a plain chord of 2,000 messages."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.suite import Figures
from benchmarks.support import PROVIDER, BenchmarkError, embedded_redis, progress, spread, use_provider
from benchmarks.units import split_document
from pipeline.process import get_context
from pipeline.settings import get_settings
from pipeline.storage.schema import migrate

WIDTH = 8

QUEUE = f"vision.{PROVIDER}"


def measure(pages: int = 2000) -> Figures:
    """Measure publish_2000_s. No worker runs, so messages stay in their queues."""
    use_provider("http://127.0.0.1:9", concurrency=WIDTH)  # never called
    with embedded_redis():
        migrate(get_context().db)
        _publish(split_document(1, PROVIDER))  # connects and loads modules
        insert_s: list[float] = []
        progress(f"{pages} pages: split")
        started = time.monotonic()
        document_id = _noting_insert(insert_s, lambda: split_document(pages, PROVIDER))
        split_s = time.monotonic() - started
        progress("publishing")
        launch_s = [_publish(document_id) for _ in range(5)]
        plain_s = _plain_chord_s(pages)
    return {
        "publish_2000_s": round(median(launch_s), 3),
        f"launch, {WIDTH} lanes": spread(launch_s, "s", 3),
        f"a plain chord of {pages} messages, s": round(plain_s, 2),
        f"inserting {pages} page rows, s": round(insert_s[0], 3),
        "submit and split in all, with pictures, s": round(split_s, 2),
    }


def _noting_insert(insert_s: list[float], work: Callable[[], str]) -> str:
    """Run `work` and note the seconds of its insertion of page rows."""
    from pipeline.flows.documents.work import split

    commit = split.insert_pages

    def timed(*args: Any) -> None:
        started = time.monotonic()
        commit(*args)
        insert_s.append(time.monotonic() - started)

    with patch.object(split, "insert_pages", timed):
        return work()


def _publish(document_id: str) -> float:
    """Return the seconds of `launch`, which sends the chord of the document's lanes."""
    from pipeline.engine.metrics import queue_depths
    from tasks.documents.canvas import TASKS

    redis = get_context().redis
    redis.delete(QUEUE, f"penstock:places:documents:{document_id}")
    started = time.monotonic()
    TASKS.launch(document_id)
    ended = time.monotonic()
    sent = queue_depths(redis, [QUEUE])[QUEUE]
    if not 1 <= sent <= min(WIDTH, get_settings().providers[PROVIDER].concurrency):
        raise BenchmarkError(f"messages that were sent: {sent}")
    return ended - started


def _plain_chord_s(messages: int) -> float:
    from celery import chord, group

    from benchmarks.empty_tasks import done, unit

    started = time.monotonic()
    chord(group(unit.si(n).set(queue=QUEUE) for n in range(messages)), done.si("plain")).apply_async()
    return time.monotonic() - started

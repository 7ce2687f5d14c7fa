"""The cost of Penstock's own machinery: empty units through claims and lanes, beside a plain Celery chord."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any
from uuid import uuid4

from benchmarks.suite import Figures
from benchmarks.support import (
    BenchmarkError,
    celery_worker,
    embedded_redis,
    process,
    progress,
    spread,
    tail,
    tiny_pages,
)
from pipeline.engine.claims import Owner
from pipeline.process import get_context
from pipeline.settings import LOCAL, get_settings
from pipeline.storage.schema import migrate

PROCESSES = 2
QUEUE = "cpu"
TIMEOUT_S = 60


def measure(units: int = 1500, rounds: int = 3) -> Figures:
    """Measure units_vs_chord_quantum and units_vs_chord_single."""
    figures: Figures = {}
    with embedded_redis():
        migrate(get_context().db)
        for key, label, quantum_s in (
            ("units_vs_chord_quantum", "lanes, quantum of 1 s", 1.0),
            ("units_vs_chord_single", "lanes, one unit a message", 0.0),
        ):
            chord: list[float] = []
            lanes: list[float] = []
            with worker(quantum_s):
                for number in range(rounds):
                    progress(f"{units} empty units, round {number + 1}: a plain chord, {label}")
                    chord.append(units / chord_s(units))
                    lanes.append(units / lanes_s(units))
            # In turns, so that other load on the machine is the same for both.
            figures[key] = round(median(lanes) / median(chord), 3)
            figures[label] = spread(lanes, "units/s", 0)
            figures[f"plain chord beside {label}"] = spread(chord, "units/s", 0)
    return figures


@contextmanager
def worker(quantum_s: float) -> Iterator[int]:
    """Run a prefork worker and warm it up; yield its process id."""
    command = celery_worker(
        "benchmarks.empty_tasks", "-Q", QUEUE, "-P", "prefork", "-c", str(PROCESSES), "-n", "empty@%h"
    )
    log = get_settings().data_dir / f"worker-{quantum_s:g}.log"
    with process(command, log, env={"PENSTOCK_DOCUMENTS__QUANTUM_S": str(quantum_s)}) as running:
        try:
            chord_s(50)
            lanes_s(50)
            yield running.pid
        except BenchmarkError as error:
            raise BenchmarkError(f"{error}; the worker's log ends with:\n{tail(log)}") from error


def chord_s(units: int) -> float:
    """Send a plain chord with a message for each unit; return the seconds until its body runs."""
    from celery import group

    from benchmarks.empty_tasks import unit

    return _timed(group(unit.si(number).set(queue=QUEUE) for number in range(units)))


def lanes_s(units: int) -> float:
    """Send a document's lanes, which claim and settle its pages; return the seconds until their body runs."""
    from celery import group

    from pipeline.flows.documents import plan
    from tasks.documents import status
    from tasks.documents.canvas import lane_signature

    context = get_context()
    document_id = split_document(units)
    (due,) = plan.stages(context, [document_id])
    lanes = range(due.lanes[QUEUE])
    took_s = _timed(group(lane_signature(context.settings, document_id, QUEUE, number) for number in lanes))
    done = status(document_id)
    if done.completed_count != units or done.status.name != "READY_TO_MERGE":
        raise BenchmarkError(f"{done.completed_count} of {units} pages are done, the document is {done.status.name}")
    return took_s


def _timed(header: Any) -> float:
    from celery import chord

    from benchmarks.empty_tasks import done

    token = uuid4().hex
    started = time.monotonic()
    chord(header, done.si(token).set(queue=QUEUE)).apply_async()
    if get_context().redis.blpop([f"benchmark:{token}"], timeout=TIMEOUT_S) is None:
        raise BenchmarkError(f"a chord has not ended within {TIMEOUT_S} s")
    return time.monotonic() - started


def split_document(pages: int, provider: str = LOCAL) -> str:
    """Insert a document whose pages wait for their conversion, without a message; return its id."""
    from pipeline.flows.documents import submission
    from pipeline.flows.documents.work import split

    context = replace(get_context(), launcher=None)
    options = submission.Options(fresh=True, provider=provider)
    document = submission.submit(context, tiny_pages(f"{pages}-pages", pages), options)
    if not split.split_document(context, document.id, Owner("benchmark", uuid4().hex)):
        raise BenchmarkError("the document could not be split")
    context.db.dispose()
    return document.id

"""How long somebody waits: for the first page, for a small document beside a big one, for `penstock convert`."""

import multiprocessing
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

from benchmarks.report import Report, spread
from benchmarks.support import (
    BenchmarkError,
    big_document,
    new_folder,
    penstock,
    progress,
    stack,
    text_document,
    users_of,
    wait_until,
)
from pipeline.settings import LOCAL, get_settings

QUANTUM_S = 1.0
BIG_AT_ONCE = 2
"""Big documents under way at any time: with one, there would be moments between two without any."""


def start(*, quick: bool) -> Report:
    """submit_to_start_ms: from the call of `submit` to the moment at which the first page's converter is called."""
    from tasks.documents import attempts, submit

    waits, submits, splits = [], [], []
    with stack():
        submit(text_document("warm-up", 4), provider=LOCAL).wait(60)
        progress("ten documents of one page")
        for number in range(5 if quick else 10):
            source = text_document(f"start-{number}", 1)
            time.sleep(0.2)  # idle again: what followed the last document has ended
            begun = datetime.now(UTC)
            document = submit(source, provider=LOCAL)
            submits.append(_ms(begun, datetime.now(UTC)))
            done = document.wait(30)
            page = attempts(document.id)[0]
            # The ledger's row is written when the page is committed, which for a single page is when it ends.
            waits.append(_ms(begun, page.created_at - timedelta(milliseconds=page.latency_ms)))
            assert done.started_at
            splits.append(_ms(begun, done.started_at))
    report = Report()
    report.figure("submit_to_start_ms", median(waits))
    report.fact("all", spread(waits, "ms", 0))
    report.fact("of that, submit itself: median", f"{median(submits):.0f} ms")
    report.fact("of that, until split is claimed: median", f"{median(splits):.0f} ms")
    return report


def _ms(begun: datetime, ended: datetime) -> float:
    return (ended - begun).total_seconds() * 1000


def small(*, quick: bool) -> Report:
    """small_document_ratio."""
    big = big_document()
    times = 3 if quick else 7
    with stack():
        small_s("warm-up")
        progress("3 pages alone")
        alone = [small_s(f"alone-{number}") for number in range(times)]
        progress("3 pages beside documents of 619 pages")
        with busy(big):
            beside = []
            for number in range(times):
                wait_until("a big document", _is_busy, 30)
                beside.append(small_s(f"beside-{number}"))
    allowed_s = 2 * median(alone) + QUANTUM_S
    report = Report()
    report.figure("small_document_ratio", median(beside) / allowed_s)
    report.fact("alone: median", f"{median(alone):.3f} s")
    report.fact("beside: median, longest", f"{median(beside):.3f}, {max(beside):.3f} s")
    report.fact("allowed", f"{allowed_s:.3f} s")
    report.fact("alone", spread(alone, "s"))
    report.fact("beside", spread(beside, "s"))
    return report


def small_s(name: str) -> float:
    """Seconds from submitting three pages to their text."""
    from tasks.documents import submit

    source = text_document(name, 3)
    begun = time.monotonic()
    document = submit(source, provider=LOCAL).wait(60)
    if document.status.name != "COMPLETED":
        raise BenchmarkError(f"the document is {document.status.name}: {document.error}")
    return time.monotonic() - begun


def _is_busy() -> bool:
    """A big document has most of its pages before it, and both places of the worker."""
    from tasks.documents import DocumentStatus, list_documents

    found = list_documents(status=DocumentStatus.PROCESSING, limit=10)
    return any(20 < document.completed_count < document.pages / 2 for document in found if document.pages > 100)


@contextmanager
def busy(source: Path) -> Iterator[None]:
    """Big documents, one after the other, as long as the `with` block lasts. By a process of its own."""
    context = multiprocessing.get_context("spawn")
    enough = context.Event()
    feeder = context.Process(target=_feed, args=(source, enough), daemon=True)
    feeder.start()
    try:
        yield
    finally:
        enough.set()
        feeder.join(30)
        if feeder.is_alive():
            feeder.kill()


def _feed(source: Path, enough: Event) -> None:
    from tasks.documents import cancel, status, submit

    running: list[str] = []
    while not enough.wait(0.05):
        running = [document for document in running if not status(document).at_rest]
        running += [submit(source, fresh=True, provider=LOCAL).id for _ in range(BIG_AT_ONCE - len(running))]
    for document in running:
        cancel(document)


def cold(*, quick: bool) -> Report:
    """cold_convert_s: from the shell, with an empty data folder and no stack."""
    taken = []
    for number in range(2 if quick else 3):
        progress(f"cold, {number + 1}")
        folder = new_folder(f"cold-{number}")
        taken.append(_command_s(text_document(f"cold-{number}", 1), folder))
        wait_until("the end of the stack", partial(_unused, folder), 60, every_s=0.2)
    report = Report()
    report.figure("cold_convert_s", median(taken))
    report.fact("all", spread(taken, "s"))
    return report


def _unused(folder: Path) -> bool:
    return not users_of(folder)


def warm(*, quick: bool) -> Report:
    """warm_convert_s: the same beside `penstock up`."""
    folder = get_settings().data_dir
    with stack():
        _command_s(text_document("warm-up", 1), folder)
        progress("warm")
        taken = [_command_s(text_document(f"warm-{number}", 1), folder) for number in range(3 if quick else 5)]
        version = _shell_s([*penstock(), "--help"], folder)
    report = Report()
    report.figure("warm_convert_s", median(taken))
    report.fact("all", spread(taken, "s"))
    report.fact("penstock --help", f"{version:.2f} s")
    return report


def _command_s(source: Path, data_dir: Path) -> float:
    output = source.with_suffix(".md")
    taken_s = _shell_s([*penstock(), "convert", str(source), "-o", str(output)], data_dir)
    if not output.exists() or "text layer" not in output.read_text():
        raise BenchmarkError(f"penstock convert wrote no {output}")
    return taken_s


def _shell_s(command: list[str], data_dir: Path) -> float:
    env = {**os.environ, "PENSTOCK_DATA_DIR": str(data_dir)}
    begun = time.monotonic()
    ended = subprocess.run(command, env=env, check=False, capture_output=True, text=True, timeout=60)
    taken_s = time.monotonic() - begun
    if ended.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr[-1000:]}")
    return taken_s

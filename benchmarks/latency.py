"""The wait of a document: until its first page, and of a small document beside a big one."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

from benchmarks.suite import Figures
from benchmarks.support import big_document, completed, progress, spread, stack, text_document, wait_until
from pipeline.settings import LOCAL

QUANTUM_S = 1.0
BIG_AT_ONCE = 2
"""Big documents under way at any time. With one, there would be a gap between two documents."""


def start(documents: int = 10) -> Figures:
    """Measure submit_to_start_ms: from the call of `submit` to the call of the first page's converter."""
    from tasks.documents import attempts, submit

    waits, submits, splits = [], [], []
    with stack():
        submit(text_document("warm-up", 4), provider=LOCAL).wait(60)
        progress(f"{documents} documents of one page")
        for number in range(documents):
            source = text_document(f"start-{number}", 1)
            time.sleep(0.2)  # the work after the last document has ended
            submitted = datetime.now(UTC)
            document = submit(source, provider=LOCAL)
            submits.append(_ms(submitted, datetime.now(UTC)))
            done = document.wait(30)
            page = attempts(document.id)[0]
            # The commit of the page writes the ledger's row. For a single page that is its end.
            waits.append(_ms(submitted, page.created_at - timedelta(milliseconds=page.latency_ms)))
            assert done.started_at
            splits.append(_ms(submitted, done.started_at))
    return {
        "submit_to_start_ms": round(median(waits)),
        "all": spread(waits, "ms", 0),
        "of that, submit itself: median, ms": round(median(submits)),
        "of that, until split is claimed: median, ms": round(median(splits)),
    }


def _ms(start: datetime, ended: datetime) -> float:
    return (ended - start).total_seconds() * 1000


def small(rounds: int = 7) -> Figures:
    """Measure small_document_ratio."""
    big = big_document()
    with stack():
        small_s("warm-up")
        progress("3 pages alone")
        alone = [small_s(f"alone-{number}") for number in range(rounds)]
        progress("3 pages beside documents of 619 pages")
        with busy(big):
            beside = []
            for number in range(rounds):
                wait_until("a big document", _is_busy, 30)
                beside.append(small_s(f"beside-{number}"))
    allowed_s = 2 * median(alone) + QUANTUM_S
    return {
        "small_document_ratio": round(median(beside) / allowed_s, 3),
        "allowed, s": round(allowed_s, 3),
        "alone": spread(alone, "s"),
        "beside": spread(beside, "s"),
    }


def small_s(name: str) -> float:
    """Return the seconds from the submission of three pages to their text."""
    from tasks.documents import submit

    source = text_document(name, 3)
    started = time.monotonic()
    completed(submit(source, provider=LOCAL), 60)
    return time.monotonic() - started


def _is_busy() -> bool:
    """Whether a big document holds both slots of the worker and is not half done."""
    from tasks.documents import DocumentStatus, list_documents

    processing = list_documents(status=DocumentStatus.PROCESSING, limit=10)
    return any(20 < document.completed_count < document.pages / 2 for document in processing if document.pages > 100)


@contextmanager
def busy(source: Path) -> Iterator[None]:
    """Convert big documents one after the other during the `with` block. A process of its own submits them."""
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

"""How long a document waits: for its first page, and a small one beside a big one."""

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
"""Big documents under way at any time: with one, there would be moments between two without any."""


def start(documents: int = 10) -> Figures:
    """submit_to_start_ms: from the call of `submit` to the moment at which the first page's converter is called."""
    from tasks.documents import attempts, submit

    waits, submits, splits = [], [], []
    with stack():
        submit(text_document("warm-up", 4), provider=LOCAL).wait(60)
        progress(f"{documents} documents of one page")
        for number in range(documents):
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
    return {
        "submit_to_start_ms": round(median(waits)),
        "all": spread(waits, "ms", 0),
        "of that, submit itself: median, ms": round(median(submits)),
        "of that, until split is claimed: median, ms": round(median(splits)),
    }


def _ms(begun: datetime, ended: datetime) -> float:
    return (ended - begun).total_seconds() * 1000


def small(rounds: int = 7) -> Figures:
    """small_document_ratio."""
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
    """Seconds from submitting three pages to their text."""
    from tasks.documents import submit

    source = text_document(name, 3)
    begun = time.monotonic()
    completed(submit(source, provider=LOCAL), 60)
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

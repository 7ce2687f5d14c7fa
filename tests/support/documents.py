"""Documents in any state, and workers that process their pages like lanes, one transaction at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import MetaData, insert, select, update

from pipeline.engine.claims import Owner, new_claim
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.transaction import Tx
from pipeline.flows.documents import files
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, PAGES
from pipeline.flows.documents.plan import CPU, provider_of
from pipeline.flows.documents.states import DocumentStatus, PageStatus, progress
from pipeline.flows.documents.work import page
from pipeline.flows.documents.work.page import Attempt, PageBatch, PageUnit
from pipeline.providers.protocols import Answer, Usage
from pipeline.reading.files.user_file import write_text
from pipeline.storage.context import Context

Result = TypeVar("Result")

CLAIMED_STAGES = {DocumentStatus.SPLITTING, DocumentStatus.MERGING}
WAITING = (PageStatus.PENDING, PageStatus.PENDING, PageStatus.PENDING)


def insert_document(
    context: Context,
    status: DocumentStatus = DocumentStatus.PROCESSING,
    pages: Sequence[PageStatus] = WAITING,
    provider: str = "local",
    **values: Any,
) -> str:
    """Insert a document whose counters fit its pages. `holder` holds the claims. COMPLETED pages have a text."""
    document_id = uuid4().hex[:16]
    now = datetime.now(UTC)
    completed = list(pages).count(PageStatus.COMPLETED)
    row = {
        "id": document_id,
        "filename": "report.pdf",
        "type": "pdf",
        "provider": provider,
        "status": status,
        "pages": len(pages),
        "completed_count": completed,
        "failed_count": list(pages).count(PageStatus.FAILED),
        "progress": progress(status, len(pages), completed, 41),
        "submission_key": document_id,
        "created_at": now,
        "updated_at": now,
        **(held() if status in CLAIMED_STAGES else {}),
        **values,
    }
    with context.db.transaction() as session:
        session.execute(insert(DOCUMENTS).values(**row))
        for number, state in enumerate(pages, 1):
            session.execute(insert(PAGES).values(**page_row(document_id, number, state, provider)))
    return document_id


def page_row(document_id: str, number: int, state: PageStatus, provider: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "document_id": document_id,
        "page": number,
        "page_source": number,
        "status": state,
        "provider": provider,
        "content": f"text of page {number}" if state in {PageStatus.COMPLETED, PageStatus.RETRYING} else "",
        "error": "it failed" if state is PageStatus.FAILED else None,
        "created_at": now,
        "updated_at": now,
        "attempts": 0 if state is PageStatus.PENDING else 1,
        **(held() if state is PageStatus.PROCESSING else {}),
    }


def held() -> dict[str, Any]:
    """Return the columns of a row that the worker `holder` has claimed."""
    claim = new_claim(Owner("holder", "holder-request:0"), datetime.now(UTC), 300)
    return {**claim.columns, "attempts": 1}


def document(context: Context, document_id: str) -> Any:
    """Return the document's row."""
    with context.db.read() as session:
        return session.execute(select(DOCUMENTS).where(DOCUMENTS.c.id == document_id)).one()


def pages(context: Context, document_id: str) -> list[Any]:
    """Return the document's page rows in order."""
    with context.db.read() as session:
        return list(session.execute(select(PAGES).where(PAGES.c.document_id == document_id).order_by(PAGES.c.page)))


def page_states(context: Context, document_id: str) -> list[PageStatus]:
    return [PageStatus(row.status) for row in pages(context, document_id)]


def attempts(context: Context, document_id: str) -> list[Any]:
    """Return the document's ledger."""
    with context.db.read() as session:
        query = select(ATTEMPTS).where(ATTEMPTS.c.document_id == document_id).order_by(ATTEMPTS.c.id)
        return list(session.execute(query))


def set_row(context: Context, document_id: str, **values: Any) -> None:
    """Change the document's row without the flow's code."""
    with context.db.transaction() as session:
        session.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(**values))


def write_output(context: Context, document_id: str, text: str = "merged before\n") -> str:
    """Write the merged file of a document, and return its path."""
    row = document(context, document_id)
    path = files.output_path(context.settings, document_id, row.filename)
    write_text(path, text)
    return str(path)


def only(units: Sequence[PageUnit]) -> PageUnit:
    """Return the only unit."""
    (unit,) = units
    return unit


def good(unit: PageUnit, text: str = "", *, call_id: str = "", cost: float = 0.0, **values: Any) -> Attempt:
    """Return the outcome of a converted page; with a `call_id`, a call made it."""
    answer = Answer(text or f"new text of page {unit.page}", "m-1", Usage(10, 5))
    calls = (call_of(unit, answer, call_id, cost),) if call_id else ()
    return Attempt(unit, answer, latency_ms=7, calls=calls, **values)


def call_of(unit: PageUnit, answer: Answer, call_id: str, cost: float = 0.0) -> dict[str, Any]:
    """Return the record of the call that gave an answer."""
    now = datetime.now(UTC)
    return page.trace(unit, call_id, "", answer, None, latency_ms=7, cost=cost, queue="", began_at=now)


def bad(unit: PageUnit, kind: ErrorKind = ErrorKind.PERMANENT, retry_after_s: float | None = None) -> Attempt:
    """Return the outcome of a failed page."""
    return Attempt(unit, error=UnitError(f"a {kind} error", kind=kind, retry_after_s=retry_after_s))


class Worker:
    """One worker on one document's pages. `later_s` moves its clock."""

    def __init__(
        self, context: Context, document_id: str, name: str = "w1", queue: str = CPU, owner: Owner | None = None
    ) -> None:
        self._context = context
        self._document_id = document_id
        self._queue = queue
        self.owner = owner or Owner(name, f"{name}-request:0")

    def settle_and_claim(
        self, tried: Sequence[Attempt] = (), want: int = 0, later_s: float = 0, untried: Sequence[PageUnit] = ()
    ) -> PageBatch | None:
        """Settle and claim in one transaction, like a lane."""

        def act(tx: Tx) -> PageBatch | None:
            tx.now = datetime.now(UTC) + timedelta(seconds=later_s)
            providers = [provider_of(self._queue)]
            return page.settle_and_claim(tx, self._document_id, providers, tried, want, self.owner, untried=untried)

        return self._context.db.run(act)

    def claim(self, want: int = 1, later_s: float = 0) -> Sequence[PageUnit]:
        done = self.settle_and_claim(want=want, later_s=later_s)
        return done.units if done else []

    def settle(self, *tried: Attempt) -> PageBatch | None:
        return self.settle_and_claim(tried)


def at_once(count: int, act: Callable[[int], Result]) -> list[Result]:
    """Run `act(0)`, `act(1)` … in threads that start together; return their results."""
    barrier = Barrier(count)

    def run_one(number: int) -> Result:
        barrier.wait(60)
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run_one, range(count)))


def mentions(context: Context, words: str) -> list[str]:
    """Return the tables of the database and the files of the data folder that contain these words."""
    found, tables = files_with(context.settings.data_dir, words), MetaData()
    with context.db.read() as session:
        tables.reflect(session.connection())
        found += [table.name for table in tables.sorted_tables if words in str(session.execute(select(table)).all())]
    return found


def files_with(folder: Path, words: str) -> list[str]:
    """Return the files in a folder and below that contain these words."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and words.encode() in path.read_bytes()]

"""Pages as rows: claimed, settled and released. Source 001, sections 4.3, 5.1–5.3.

Every transaction that changes pages locks their document first. So claims, results, counters and a user's commands on
one document come one after another, and exactly one transaction sees the last page settled.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine import claims
from pipeline.engine.claims import FREE, Claim
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GateClosed
from pipeline.engine.lanes import Batch
from pipeline.engine.relaunch import RELAUNCH_AFTER_S
from pipeline.engine.retry import Drop, GiveUp, Policy, Release, RetryAt, decide
from pipeline.engine.settled import Settled
from pipeline.engine.tables import storable, upsert
from pipeline.engine.traces import AiCall, message_of, preview
from pipeline.engine.views import view_of
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, LAYOUTS, PAGES
from pipeline.flows.documents.states import (
    DOCUMENT,
    PAGE,
    DocumentStatus,
    PageEvent,
    PageStatus,
    progress,
    settled_event,
)
from pipeline.providers.protocols import Answer
from pipeline.providers.registry import MAX_MODEL_CHARS
from pipeline.settings import Settings

WORKER_LOST = "the worker was lost while it converted this page"


@dataclass(frozen=True)
class PageUnit:
    """A claimed page: what converting it takes, and the claim that its result must name."""

    id: int
    document_id: str
    page: int
    page_source: int
    provider: str
    model: str
    image_path: str | None
    use_cache: bool
    attempt: int
    claim: Claim


@dataclass(frozen=True)
class Attempt:
    """One attempt at a page, which ended in an answer or an error."""

    unit: PageUnit
    answer: Answer | None = None
    error: UnitError | None = None
    latency_ms: int = 0
    cached: bool = False
    cache_key: str | None = None
    prompt_hash: str = ""
    model: str = ""
    cost: float = 0.0
    paid: bool = False
    """A service was called."""
    queue: str = ""
    """Whose gate let the call through."""


@dataclass(frozen=True)
class PageBatch(Batch[PageUnit]):
    """Pages claimed in one transaction, what it settled, and the document's row after it."""

    document: Any
    settled: Settled


def policy(settings: Settings) -> Policy:
    """When a page is tried again."""
    return Policy(tuple(settings.documents.backoff_s))


def lock(session: Session, document_id: str) -> Any | None:
    """The document's row, locked until the transaction ends; None if it was deleted."""
    return session.execute(select(DOCUMENTS).where(DOCUMENTS.c.id == document_id).with_for_update()).one_or_none()


def settle_and_claim(
    session: Session, document_id: str, providers: Collection[str], attempts: Sequence[Attempt], want: int,
    claim_as: Claim, *, policy: Policy, now: datetime, untried: Sequence[PageUnit] = (),
) -> PageBatch | None:  # fmt: skip
    """Settle `attempts`, release the pages left `untried`, and claim up to `want` pages of `providers`.

    None if the document was deleted.
    """
    document = lock(session, document_id)
    if document is None:
        return None
    if untried:
        fences = {unit.claim.id for unit in untried}
        release(session, now, PAGES.c.id.in_([unit.id for unit in untried]), PAGES.c.claim_id.in_(fences))
    settled = Settled()
    if attempts:
        settled = settle(session, document, attempts, policy, now)
        document = lock(session, document_id)
        assert document is not None
    if document.status != DocumentStatus.PROCESSING:
        return PageBatch([], False, document, Settled(settled.done))  # paused: nobody needs to wake up for its waits
    units = claim(session, document_id, providers, want, claim_as, now) if want else []
    more = bool(units) if want else _has_claimable(session, document_id, providers, now)
    return PageBatch(units, more, document, settled)


def _has_claimable(session: Session, document_id: str, providers: Collection[str], now: datetime) -> bool:
    query = select(PAGES.c.id).where(
        PAGES.c.document_id == document_id, PAGES.c.status.in_(list(PAGE.sources(PageEvent.CLAIM))),
        claims.is_due(PAGES, now), PAGES.c.provider.in_(providers),
    ).limit(1)  # fmt: skip
    return session.execute(query).first() is not None


def claim(
    session: Session, document_id: str, providers: Collection[str], want: int, claim_as: Claim, now: datetime
) -> list[PageUnit]:
    """Claim up to `want` due pages of `providers`, in the order of the pages. The document is locked."""

    def take(limit: int, *where: ColumnElement[bool]) -> list[Any]:
        return claims.take(
            session, PAGES, PAGE, PageEvent.CLAIM, PAGES.c.document_id == document_id, PAGES.c.provider.in_(providers),
            *where, claim=claim_as, order_by=PAGES.c.page, limit=limit, now=now, updated_at=now,
        )  # fmt: skip

    # Pages that were tried before are claimed one at a time: a page that kills its worker must not use up the
    # attempts of pages claimed beside it.
    rows = take(want, PAGES.c.attempts == 0) or take(1)
    units = [view_of(PageUnit, row, attempt=row.attempts, claim=claim_as) for row in rows]
    return sorted(units, key=lambda unit: unit.page)


def settle(session: Session, document: Any, attempts: Sequence[Attempt], policy: Policy, now: datetime) -> Settled:
    """Write the attempts whose claims still hold, count them, and move the document on if they were the last.

    An attempt whose claim was lost changes no page, but goes into the ledger: it may have been paid for.
    """
    ids = [attempt.unit.id for attempt in attempts]
    fences = {attempt.unit.claim.id for attempt in attempts}
    mine = PAGES.c.id.in_(ids), PAGES.c.claim_id.in_(fences), PAGES.c.status == PageStatus.PROCESSING
    held = set(session.execute(select(PAGES.c.id).where(*mine)).scalars())
    _record(session, [attempt for attempt in attempts if not isinstance(attempt.error, GateClosed)], held, now)
    changes: dict[PageEvent, list[dict[str, Any]]] = {}
    waits = []
    effective = [attempt for attempt in attempts if attempt.unit.id in held]
    for attempt in effective:
        event, values = _decide(attempt, policy, now)
        if values.get("next_run_at"):
            waits.append((values["next_run_at"] - now).total_seconds())
        row = {"id": attempt.unit.id, "claim_id": attempt.unit.claim.id, "updated_at": now, **values}
        changes.setdefault(event, []).append(row)
    for event, rows in changes.items():
        PAGE.move_each(session, PAGES, event, rows, **_COLUMNS[event])
    _store_layouts(session, effective)
    done = len(changes.get(PageEvent.DONE, []))
    _count(session, document, done, len(changes.get(PageEvent.FAIL, [])), now)
    return Settled(done, retry_in_s=min(waits, default=None))


_SPENT: dict[str, Any] = {**FREE, "retry_count": PAGES.c.retry_count + 1}
_COLUMNS: dict[PageEvent, dict[str, Any]] = {
    PageEvent.DONE: {**FREE, "error": None},
    PageEvent.FAIL: _SPENT,
    PageEvent.WAIT: _SPENT,
    PageEvent.GIVE_BACK: {**FREE, "attempts": PAGES.c.attempts - 1},
}
"""The columns that each event sets alike for all pages."""


def _decide(attempt: Attempt, policy: Policy, now: datetime) -> tuple[PageEvent, dict[str, Any]]:
    if attempt.answer is not None:
        return PageEvent.DONE, {"content": storable(attempt.answer.text)}
    assert attempt.error is not None
    error = message_of(attempt.error)
    match decide(attempt.error, attempt.unit.attempt, now, policy):
        case RetryAt(at=at):
            return PageEvent.WAIT, {"next_run_at": at, "error": error}
        case Release(at=at):
            return PageEvent.GIVE_BACK, {"next_run_at": at if at > now else None, "error": error}
        case GiveUp():
            tries = f" (after {attempt.unit.attempt} attempts)" if attempt.error.kind is ErrorKind.TRANSIENT else ""
            return PageEvent.FAIL, {"error": error + tries}
        case Drop():
            return PageEvent.GIVE_BACK, {"next_run_at": None, "error": None}


def _store_layouts(session: Session, attempts: Sequence[Attempt]) -> None:
    """Store the layouts of pages with a new text, and delete those whose new text has none."""
    answers = {attempt.unit.id: attempt.answer for attempt in attempts if attempt.answer}
    known = [
        {"page_id": page_id, "data": answer.layout} for page_id, answer in answers.items() if answer.layout is not None
    ]
    unknown = [page_id for page_id, answer in answers.items() if answer.layout is None]
    if known:
        upsert(session, LAYOUTS, known)
    if unknown:
        session.execute(delete(LAYOUTS).where(LAYOUTS.c.page_id.in_(unknown)))


def _count(session: Session, document: Any, done: int, failed: int, now: datetime) -> None:
    """Add to the document's counters, and move it on if no page is outstanding."""
    completed, failures = document.completed_count + done, document.failed_count + failed
    event, before = None, DocumentStatus(document.status)
    if before is DocumentStatus.PROCESSING:
        event = settled_event(document.pages, completed, failures, allow_partial=document.allow_partial)
    status = DOCUMENT.target(before, event) if event else before
    # PARTIAL_FAILED keeps the percentage of the state before, which includes these pages.
    reached = progress(before, document.pages, completed, document.progress)
    values = {
        "completed_count": completed,
        "failed_count": failures,
        "progress": progress(status, document.pages, completed, reached),
        "launches": 0,
        "launch_due_at": now + timedelta(seconds=RELAUNCH_AFTER_S),
        "updated_at": now,
    }
    mine = DOCUMENTS.c.id == document.id
    if event is None:
        session.execute(update(DOCUMENTS).where(mine).values(**values))
    else:
        ended = {"finished_at": now} if status is DocumentStatus.PARTIAL_FAILED else {}
        DOCUMENT.move(session, DOCUMENTS, event, mine, **values, **ended)


def _record(session: Session, attempts: Sequence[Attempt], held: set[int], now: datetime) -> None:
    """Write the ledger, and a trace of each call to a service."""
    rows, calls = [], []
    for attempt in attempts:
        unit, answer, error = attempt.unit, attempt.answer, attempt.error
        # A truncated answer is an error, but its text was paid for.
        partial = answer or getattr(error, "answer", None)
        model = (partial.model if partial else "") or attempt.model or unit.model
        kind, message = (str(error.kind), message_of(error)) if error else ("", None)
        rows.append({
            "document_id": unit.document_id, "page": unit.page, "page_source": unit.page_source,
            "provider": unit.provider, "model": storable(model)[:MAX_MODEL_CHARS],
            "prompt_hash": attempt.prompt_hash, "cache_key": attempt.cache_key, "cached": attempt.cached,
            "status": "completed" if answer else kind, "effective": unit.id in held,
            "error": message, "text": storable(partial.text) if partial else "",
            "input_tokens": partial.usage.input_tokens if partial else 0,
            "output_tokens": partial.usage.output_tokens if partial else 0,
            "latency_ms": attempt.latency_ms, "worker_id": unit.claim.owner.worker_id, "created_at": now,
        })  # fmt: skip
        if attempt.paid:
            calls.append({
                "flow": "documents", "scope_id": unit.document_id, "unit": str(unit.page), "capability": "vision",
                "operation": "page_to_markdown", "provider": unit.provider,
                "model": storable(answer.model if answer else attempt.model)[:MAX_MODEL_CHARS],
                "status": "ok" if answer else kind, "error": message, "latency_ms": attempt.latency_ms,
                "input_tokens": answer.usage.input_tokens if answer else 0,
                "output_tokens": answer.usage.output_tokens if answer else 0,
                "cost": attempt.cost, "queue": attempt.queue, "created_at": now,
                "preview": preview(storable(answer.text)) if answer else "",
            })  # fmt: skip
    connection = session.connection()
    if rows:
        connection.execute(insert(ATTEMPTS), rows)
    if calls:
        connection.execute(insert(AiCall), calls)


def release(session: Session, now: datetime, *which: ColumnElement[bool]) -> None:
    """Release the claimed pages that match `which`; the attempt does not count. Their documents are locked."""
    values = _COLUMNS[PageEvent.GIVE_BACK]
    PAGE.move(session, PAGES, PageEvent.GIVE_BACK, PAGES.c.claim_id.is_not(None), *which, **values, updated_at=now)


def release_lost(
    session: Session, document: Any, which: ColumnElement[bool], reason: str, policy: Policy, now: datetime
) -> list[str]:
    """Release the claimed pages that match `which`, and fail those out of attempts, all with `reason`.

    Returns the requests that held them. The next attempt comes at once: either the page was not at fault, or its
    attempts will run out soon.
    """
    mine = and_(PAGES.c.document_id == document.id, PAGES.c.claim_id.is_not(None), which)
    requests = list(session.execute(select(PAGES.c.request_id).where(mine).distinct()).scalars())
    if not requests:
        return []
    spent = PAGES.c.attempts >= policy.max_attempts
    error = f"{reason} (after {policy.max_attempts} attempts)"
    failed = PAGE.move(session, PAGES, PageEvent.FAIL, mine, spent, **_SPENT, error=error, updated_at=now)
    PAGE.move(session, PAGES, PageEvent.GIVE_BACK, mine, **FREE, next_run_at=None, error=reason, updated_at=now)
    _count(session, document, 0, failed, now)
    return [request for request in requests if request]

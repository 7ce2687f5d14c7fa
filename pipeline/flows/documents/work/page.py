"""Pages as units of work: claimed and settled in the same transactions. Source 001, sections 4.3, 5.1–5.3.

Every transaction that touches pages locks their document first, so that claims, results, counters and a user's
commands on one document come one after another; that is also why exactly one transaction sees the last page settled.
"""

import json
import re
import zlib
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
from pipeline.engine.relaunch import RELAUNCH_AFTER_S
from pipeline.engine.retry import Decision, Drop, GiveUp, Policy, Release, RetryAt, decide
from pipeline.engine.tables import upsert
from pipeline.engine.traces import AiCall, preview
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, LAYOUTS, PAGES
from pipeline.flows.documents.routes import of_providers
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

MAX_ERROR_CHARS = 2000
# NUL, which PostgreSQL refuses, and halves of surrogate pairs, which no encoding has. Models do write them.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True)
class PageUnit:
    """A claimed page: what is needed to convert it, and the claim to commit the result with."""

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
class Outcome:
    """How an attempt of a page ended: with an answer or with an error."""

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


@dataclass(frozen=True)
class Exchange:
    """What one transaction did. `retry_in_s`: the nearest wait that it gave a page."""

    units: list[PageUnit]
    more: bool
    document: Any
    retry_in_s: float | None = None


def lock(session: Session, document_id: str) -> Any | None:
    """The document's row, locked until the transaction ends; None if it was deleted."""
    return session.execute(select(DOCUMENTS).where(DOCUMENTS.c.id == document_id).with_for_update()).one_or_none()


def exchange(
    session: Session, document_id: str, providers: Collection[str], outcomes: Sequence[Outcome], want: int,
    claim: Claim, *, policy: Policy, now: datetime, unbegun: Sequence[PageUnit] = (),
) -> Exchange | None:  # fmt: skip
    """Commit `outcomes`, give back `unbegun` and claim up to `want` pages of `providers`.

    None if the document is gone.
    """
    document = lock(session, document_id)
    if document is None:
        return None
    _give_back(session, unbegun, now)
    retry_in_s = settle(session, document, outcomes, policy, now) if outcomes else None
    if outcomes:
        document = lock(session, document_id)
        assert document is not None
    if document.status != DocumentStatus.PROCESSING:
        return Exchange([], more=False, document=document)
    if want:
        units = _claim(session, document_id, providers, want, claim, now)
        return Exchange(units, more=bool(units), document=document, retry_in_s=retry_in_s)
    more = claimable(session, document_id, now, of_providers(providers))
    return Exchange([], more=more, document=document, retry_in_s=retry_in_s)


def _give_back(session: Session, unbegun: Sequence[PageUnit], now: datetime) -> None:
    """Free pages that were claimed but never begun: no attempt is counted."""
    if unbegun:
        fences = {unit.claim.id for unit in unbegun}
        which = (PAGES.c.id.in_([unit.id for unit in unbegun]), PAGES.c.claim_id.in_(fences))
        PAGE.move(session, PAGES, PageEvent.GIVE_BACK, *which, **_FIXED[PageEvent.GIVE_BACK], updated_at=now)


def claimable(session: Session, document_id: str, now: datetime, *where: ColumnElement[bool]) -> bool:
    """Whether a page of the document waits to be claimed and is due."""
    query = select(PAGES.c.id).where(
        PAGES.c.document_id == document_id, PAGES.c.status.in_(list(PAGE.sources(PageEvent.CLAIM))),
        claims.is_due(PAGES, now), *where,
    ).limit(1)  # fmt: skip
    return session.execute(query).first() is not None


def _claim(
    session: Session, document_id: str, providers: Collection[str], want: int, claim: Claim, now: datetime
) -> list[PageUnit]:
    scope = (PAGES.c.document_id == document_id, of_providers(providers))

    def take(limit: int, *where: ColumnElement[bool]) -> list[Any]:
        return claims.take(
            session, PAGES, PAGE, PageEvent.CLAIM, *scope, *where,
            claim=claim, order_by=PAGES.c.page, limit=limit, now=now, updated_at=now,
        )  # fmt: skip

    # Pages that were tried before are claimed one by one: a page that kills its worker must not
    # use up the attempts of those that were claimed beside it.
    rows = take(want, PAGES.c.attempts == 0) or take(1)
    return sorted((_unit(row, claim) for row in rows), key=lambda unit: unit.page)


def _unit(row: Any, claim: Claim) -> PageUnit:
    return PageUnit(
        id=row.id, document_id=row.document_id, page=row.page, page_source=row.page_source, provider=row.provider,
        model=row.model, image_path=row.image_path, use_cache=row.use_cache, attempt=row.attempts, claim=claim,
    )  # fmt: skip


def settle(session: Session, document: Any, outcomes: Sequence[Outcome], policy: Policy, now: datetime) -> float | None:
    """Write outcomes whose claim still holds, count them, and move the document when they were the last.

    Returns the shortest wait in seconds that a page was given, if any. Results whose claim was taken away
    change no page, but stay in the ledger: they may have been paid for.
    """
    held = _held(session, outcomes)
    record_attempts(session, [outcome for outcome in outcomes if not isinstance(outcome.error, GateClosed)], held, now)
    rows: dict[PageEvent, list[dict[str, Any]]] = {}
    waits = []
    for outcome in outcomes:
        if outcome.unit.id not in held:
            continue
        event, values = _decided(outcome, policy, now)
        if values.get("next_run_at"):
            waits.append((values["next_run_at"] - now).total_seconds())
        rows.setdefault(event, []).append(
            {"id": outcome.unit.id, "claim_id": outcome.unit.claim.id, "updated_at": now, **values}
        )
    for event, changes in rows.items():
        PAGE.move_each(session, PAGES, event, changes, **_FIXED[event])
    _keep_layouts(session, [outcome for outcome in outcomes if outcome.answer and outcome.unit.id in held])
    count(session, document, len(rows.get(PageEvent.DONE, [])), len(rows.get(PageEvent.FAIL, [])), now)
    return min(waits, default=None)


def _keep_layouts(session: Session, outcomes: Sequence[Outcome]) -> None:
    """Store what stands where on pages whose text was stored; forget it where the new text came without."""
    known, unknown = [], []
    for outcome in outcomes:
        assert outcome.answer
        if outcome.answer.layout is None:
            unknown.append(outcome.unit.id)
        else:
            known.append({"page_id": outcome.unit.id, "data": pack_layout(outcome.answer.layout)})
    if known:
        upsert(session, LAYOUTS, known)
    if unknown:
        session.execute(delete(LAYOUTS).where(LAYOUTS.c.page_id.in_(unknown)))


def pack_layout(layout: dict[str, Any]) -> bytes:
    """A page's layout as it is stored."""
    return zlib.compress(storable(json.dumps(layout, ensure_ascii=False)).encode(), 1)


def unpack_layout(data: bytes) -> dict[str, Any]:
    """What `pack_layout` made."""
    return dict(json.loads(zlib.decompress(data)))


def _held(session: Session, outcomes: Sequence[Outcome]) -> set[int]:
    ids = [outcome.unit.id for outcome in outcomes]
    fences = {outcome.unit.claim.id for outcome in outcomes}
    mine = select(PAGES.c.id).where(PAGES.c.id.in_(ids), PAGES.c.claim_id.in_(fences))
    return set(session.execute(mine.where(PAGES.c.status == PageStatus.PROCESSING)).scalars())


_SPENT: dict[str, Any] = {**FREE, "retry_count": PAGES.c.retry_count + 1}
_FIXED: dict[PageEvent, dict[str, Any]] = {
    PageEvent.DONE: {**FREE, "error": None},
    PageEvent.FAIL: _SPENT,
    PageEvent.WAIT: _SPENT,
    PageEvent.GIVE_BACK: {**FREE, "attempts": PAGES.c.attempts - 1},
}


def _decided(outcome: Outcome, policy: Policy, now: datetime) -> tuple[PageEvent, dict[str, Any]]:
    if outcome.answer is not None:
        return PageEvent.DONE, {"content": storable(outcome.answer.text)}
    assert outcome.error is not None
    error = message_of(outcome.error)
    decision: Decision = decide(outcome.error, outcome.unit.attempt, now, policy)
    match decision:
        case RetryAt(at=at):
            return PageEvent.WAIT, {"next_run_at": at, "error": error}
        case Release(at=at):
            return PageEvent.GIVE_BACK, {"next_run_at": at if at > now else None, "error": error}
        case GiveUp():
            tries = f" (after {outcome.unit.attempt} attempts)" if outcome.error.kind is ErrorKind.TRANSIENT else ""
            return PageEvent.FAIL, {"error": error + tries}
        case Drop():
            return PageEvent.GIVE_BACK, {"next_run_at": None, "error": None}


def message_of(error: Exception) -> str:
    """An error as it is stored: one text, cut."""
    return storable(str(error) or type(error).__name__)[:MAX_ERROR_CHARS]


def storable(text: str) -> str:
    """The text with a replacement character for each one that a database or a file refuses."""
    return _UNSTORABLE.sub("\ufffd", text)


def count(session: Session, document: Any, done: int, failed: int, now: datetime) -> None:
    """Add to the document's counters and, when no page is outstanding, move it on."""
    completed, failures = document.completed_count + done, document.failed_count + failed
    event, before = None, DocumentStatus(document.status)
    if before is DocumentStatus.PROCESSING:
        event = settled_event(document.pages, completed, failures, allow_partial=document.allow_partial)
    status = DOCUMENT.target(before, event) if event else before
    # PARTIAL_FAILED keeps the figure it was reached with, and these pages are part of it.
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


def record_attempts(session: Session, outcomes: Sequence[Outcome], held: set[int], now: datetime) -> None:
    """Write the ledger: one row for each attempt that was begun."""
    if not outcomes:
        return
    connection = session.connection()
    connection.execute(insert(ATTEMPTS), [_attempt(outcome, outcome.unit.id in held, now) for outcome in outcomes])
    calls = [_call(outcome, now) for outcome in outcomes if outcome.paid]
    if calls:
        connection.execute(insert(AiCall), calls)


def _attempt(outcome: Outcome, effective: bool, now: datetime) -> dict[str, Any]:
    unit, answer, error = outcome.unit, outcome.answer, outcome.error
    # A truncated answer is an error, but its text was paid for.
    partial = answer or getattr(error, "answer", None)
    model = (partial.model if partial else "") or outcome.model or unit.model
    return {
        "document_id": unit.document_id, "page": unit.page, "page_source": unit.page_source,
        "provider": unit.provider, "model": storable(model)[:MAX_MODEL_CHARS],
        "prompt_hash": outcome.prompt_hash, "cache_key": outcome.cache_key, "cached": outcome.cached,
        "status": "completed" if answer else str(error.kind if error else ""), "effective": effective,
        "error": message_of(error) if error else None, "text": storable(partial.text) if partial else "",
        "input_tokens": partial.usage.input_tokens if partial else 0,
        "output_tokens": partial.usage.output_tokens if partial else 0,
        "latency_ms": outcome.latency_ms, "worker_id": unit.claim.owner.worker_id, "created_at": now,
    }  # fmt: skip


def _call(outcome: Outcome, now: datetime) -> dict[str, Any]:
    unit, answer, error = outcome.unit, outcome.answer, outcome.error
    model = answer.model if answer else outcome.model
    return {
        "flow": "documents", "scope_id": unit.document_id, "unit": str(unit.page), "capability": "vision",
        "operation": "page_to_markdown", "provider": unit.provider, "model": storable(model)[:MAX_MODEL_CHARS],
        "status": "ok" if answer else str(error.kind if error else ""), "error": message_of(error) if error else None,
        "latency_ms": outcome.latency_ms, "input_tokens": answer.usage.input_tokens if answer else 0,
        "output_tokens": answer.usage.output_tokens if answer else 0,
        "cost": outcome.cost,
        "preview": preview(storable(answer.text)) if answer else "", "created_at": now,
    }  # fmt: skip


def free_lost(
    session: Session, document: Any, which: ColumnElement[bool], reason: str, policy: Policy, now: datetime
) -> list[str]:
    """Give back claimed pages that match `which`; those whose attempts are used up fail with `reason`.

    Returns the requests that held them. Their next attempt comes at once: the page was not at fault, or will
    soon have used up its attempts.
    """
    mine = and_(PAGES.c.document_id == document.id, PAGES.c.claim_id.is_not(None), which)
    requests = list(session.execute(select(PAGES.c.request_id).where(mine).distinct()).scalars())
    if not requests:
        return []
    spent = PAGES.c.attempts >= policy.max_attempts
    error = f"{reason} (after {policy.max_attempts} attempts)"
    failed = PAGE.move(session, PAGES, PageEvent.FAIL, mine, spent, **_SPENT, error=error, updated_at=now)
    PAGE.move(session, PAGES, PageEvent.GIVE_BACK, mine, **FREE, next_run_at=None, error=reason, updated_at=now)
    count(session, document, 0, failed, now)
    return [request for request in requests if request]

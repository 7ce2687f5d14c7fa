"""Claims, settles and releases pages. Rules: docs/sources/documents.md#completion.

Every transaction that changes pages locks their document first. So claims, results, counters and users' commands on
one document come one after another, and exactly one transaction sees the last page settled.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import and_, bindparam, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from pipeline.engine import traces, work
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GateClosed
from pipeline.engine.lanes import Batch
from pipeline.engine.retry import Policy
from pipeline.engine.settled import Settled
from pipeline.engine.tables import storable, upsert
from pipeline.engine.traces import message_of, preview
from pipeline.engine.transaction import Tx
from pipeline.engine.views import view_of
from pipeline.engine.work import Changes, Outcome, Work
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, LAYOUTS, PAGES
from pipeline.flows.documents.queries import commonest_error
from pipeline.flows.documents.rules.doubt import doubt
from pipeline.flows.documents.states import (
    DOCUMENT,
    PAGE,
    DocumentEvent,
    DocumentStatus,
    EscalationState,
    PageEvent,
    progress,
    settled_event,
)
from pipeline.flows.documents.work import escalation
from pipeline.flows.documents.work.document import lock
from pipeline.flows.documents.work.escalation import PAGE_OPERATION, Counts
from pipeline.providers.protocols import MOST_PASSES, Answer
from pipeline.providers.registry import MAX_MODEL_CHARS
from pipeline.reading.replies.form import PARSING_S
from pipeline.settings import Settings

LEASE_MARGIN_S = 60


@dataclass(frozen=True)
class PageUnit:
    """A claimed page: the facts that its conversion needs, and its claim."""

    id: int
    document_id: str
    page: int
    page_source: int
    provider: str
    model: str
    image_path: str | None
    use_cache: bool
    attempts: int
    claim_id: str
    worker_id: str


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
    provider: str = ""
    """The provider that made the answer, if it is not the page's."""
    fallback: str | None = None
    """Why the page was converted on this machine instead of by its provider."""
    calls: tuple[Mapping[str, Any], ...] = ()
    """The records of the calls to a service (`trace`), each with its key `kept`: the file of the answer until the
    database has it."""
    reply: Mapping[str, Any] | None = None
    """`Answer.reply`; of an attempt without an answer, also the answers of its calls, for the next attempt."""
    queue: str = ""
    earlier: tuple["Attempt", ...] = ()
    """Earlier passes over the page, for the same claim, whose answers are not used."""

    @property
    def cost(self) -> float:
        """The cost of the calls by the provider's price list."""
        return float(sum(call["cost"] for call in self.calls))


@dataclass(frozen=True)
class DocumentState:
    """A document in a transaction: its row when it was locked, and its state and progress after the settling."""

    row: Any
    status: DocumentStatus
    progress: int


@dataclass(frozen=True)
class PageBatch(Batch[PageUnit]):
    """The pages that one transaction claimed, the result of what it settled, and the document's state afterwards."""

    document: DocumentState
    settled: Settled


def _policy(settings: Settings) -> Policy:
    return Policy(tuple(settings.documents.backoff_s))


def _lease_s(settings: Settings) -> float:
    # Longer than the longest calls of a page, one of which begins just before their limit, the parsing of their replies
    # and local conversion instead: if the lease expired before their end, another worker would repeat them.
    after_calls_s = PARSING_S + settings.documents.page_timeout_s + LEASE_MARGIN_S
    pages_s = [(MOST_PASSES + 1) * profile.timeout_s + after_calls_s for profile in settings.providers.values()]
    return max([settings.documents.lease_s, *pages_s])


@dataclass(frozen=True)
class _Counted:
    """A document's counters, event and state after pages of it were settled."""

    completed: int
    failed: int
    event: DocumentEvent | None
    status: DocumentStatus
    progress: int


def _counted(document: Any, counts: Counts) -> _Counted:
    completed = document.completed_count + counts.completed
    failed = document.failed_count + counts.failed
    event, before = None, DocumentStatus(document.status)
    if before is DocumentStatus.PROCESSING:
        event = settled_event(document.pages, completed, failed, allow_partial=document.allow_partial)
    status = DOCUMENT.target(before, event) if event else before
    # FAILED and PARTIAL_FAILED keep the percentage of the state before, which includes these pages.
    reached = progress(before, document.pages, completed, document.progress)
    return _Counted(completed, failed, event, status, progress(status, document.pages, completed, reached))


_COUNT = (
    update(DOCUMENTS)
    .where(DOCUMENTS.c.id == bindparam("of_document"))
    .values({name: bindparam(f"new_{name}") for name in ("completed_count", "failed_count", "progress", "updated_at")})
)


def _count(tx: Tx, document: Any, changes: Changes) -> None:
    """Update the document's counters, and move the document if no page is outstanding."""
    if not (changes.done or changes.failed):
        return
    counts = Counts(len(changes.done), len(changes.failed))
    if document.escalate:
        counts = escalation.settle(tx, document, changes.done, changes.failed)
    counted = _counted(document, counts)
    values: dict[str, Any] = {
        "completed_count": counted.completed,
        "failed_count": counted.failed,
        "progress": counted.progress,
        "updated_at": tx.now,
    }
    is_document = DOCUMENTS.c.id == document.id
    if counted.progress != document.progress:
        tx.announce("documents", document.id)
    if counted.event is None:
        tx.connection().execute(
            _COUNT, {"of_document": document.id, **{f"new_{name}": values[name] for name in values}}
        )
    else:
        ended = end_of_pages(tx, document, counted.status)
        DOCUMENT.move(tx, DOCUMENTS, counted.event, is_document, **values, **ended)


def end_of_pages(tx: Tx, document: Any, status: DocumentStatus) -> dict[str, Any]:
    """Return the columns to set on a document that reaches `status` because its pages have ended."""
    if status is DocumentStatus.PARTIAL_FAILED:
        return {"finished_at": tx.now}
    if status is DocumentStatus.FAILED:
        pages = f"all {document.pages:,} pages" if document.pages > 1 else "its page"
        return {"finished_at": tx.now, "error": f"{pages} failed: {commonest_error(tx, document.id)}"}
    return {}


CONVERT = Work(
    "page",
    PAGES,
    PAGE,
    claim=PageEvent.CLAIM,
    done=PageEvent.DONE,
    fail=PageEvent.FAIL,
    wait=PageEvent.WAIT,
    give_back=PageEvent.GIVE_BACK,
    scope=PAGES.c.document_id,
    lock=lock,
    order=(PAGES.c.attempts, PAGES.c.releases, PAGES.c.page),
    policy=_policy,
    lease_s=_lease_s,
    lost="the worker was lost while it converted this page",
    after=_count,
)
"""The conversion of one page. Untried pages come first, released ones last."""


def settle_and_claim(
    tx: Tx,
    document_id: str,
    providers: Collection[str],
    attempts: Sequence[Attempt],
    want: int,
    owner: Owner,
    *,
    untried: Sequence[PageUnit] = (),
    is_first: bool = False,
) -> PageBatch | None:
    """Settle `attempts`, release the pages left `untried`, and claim up to `want` pages of `providers`.

    Claims none unless the document is PROCESSING afterwards. Returns None if the document was deleted.
    `is_first`: first give back the claims of the message's earlier delivery.
    """
    row = lock(tx, document_id)
    if row is None:
        return None
    if is_first and work.give_back_earlier(tx, CONVERT, row, owner):
        row = lock(tx, document_id)
        assert row is not None
    if untried:
        fences = {unit.claim_id for unit in untried}
        claimed = and_(PAGES.c.id.in_([unit.id for unit in untried]), PAGES.c.claim_id.in_(fences))
        work.give_back(tx, CONVERT, row, claimed, counts=False)
    changes = _settle(tx, row, attempts) if attempts else Changes()
    after = row
    if changes:
        counts = Counts(len(changes.done), len(changes.failed))
        after = lock(tx, document_id) if row.escalate else _counted(row, counts)
    document = DocumentState(row, DocumentStatus(after.status), after.progress)
    if document.status is not DocumentStatus.PROCESSING:
        # The document is paused or has ended its pages: it needs no wake-up for waiting pages.
        return PageBatch([], False, document, Settled(len(changes.done)))
    settled = Settled(len(changes.done), retry_in_s=changes.retry_in_s)
    tx.wake_in("documents", changes.retry_in_s)
    units = _claim(tx, row, providers, want, owner) if want else []
    more = bool(units) if want else _has_claimable(tx, document_id, providers)
    return PageBatch(units, more, document, settled)


# Built once: on SQLite, building it within a transaction would prolong the only write lock.
_OF_ONE = PAGES.c.provider == bindparam("of_provider")
_DUE_OF_ONE = (
    select(PAGES.c.id)
    .where(PAGES.c.document_id == bindparam("of_document"), CONVERT.due(bindparam("due_by")), _OF_ONE)
    .limit(1)
)


def _has_claimable(tx: Tx, document_id: str, providers: Collection[str]) -> bool:
    def has_due_page(provider: str) -> bool:
        values = {"of_document": document_id, "due_by": tx.now, "of_provider": provider}
        return tx.execute(_DUE_OF_ONE, values).first() is not None

    return any(map(has_due_page, providers))


def _claim(tx: Tx, document: Any, providers: Collection[str], want: int, owner: Owner) -> list[PageUnit]:
    # For one provider, the index has the pages in the order of claiming.
    if len(providers) == 1:
        (provider,) = providers
        values = {"of_provider": provider}
        rows = work.claim(tx, CONVERT, document, owner, _OF_ONE, limit=want, parameters=values)
    else:
        rows = work.claim(tx, CONVERT, document, owner, PAGES.c.provider.in_(providers), limit=want)
    return [view_of(PageUnit, row) for row in rows]


def _settle(tx: Tx, document: Any, attempts: Sequence[Attempt]) -> Changes:
    """Write the attempts whose claims still hold, count them, and move the document after its last page.

    An attempt whose claim was lost changes no page, but the ledger records it, since it may have cost money.
    """
    passes = [each for attempt in attempts for each in (*attempt.earlier, attempt)]
    called = [each for each in passes if each.calls or not isinstance(each.error, GateClosed)]
    _charge_calls(tx, called)
    outcomes = [
        Outcome(each.unit, each.error, values=_text_of(each.answer, each.fallback) if each.answer else {})
        for each in attempts
    ]
    if document.escalate:
        outcomes = _escalated(tx, document, attempts, outcomes)
    changes = work.settle(tx, CONVERT, document, *outcomes)
    held = changes.ids
    _record(tx, called, held)
    replaced = {outcome.unit.id for outcome in outcomes if "content" in outcome.values}
    _store_layouts(
        tx, [attempt for attempt in attempts if attempt.unit.id in held and attempt.unit.id in replaced], document
    )
    return changes


def _text_of(answer: Answer, fallback: str | None) -> dict[str, Any]:
    """Return the columns to set on a page with this answer."""
    layout = answer.layout or {}
    return {
        "content": storable(answer.text),
        "confidence": layout.get("confidence"),
        "uncertain_share": layout.get("uncertain"),
        "doubtful": bool(_doubt_of(answer)) or fallback is not None,
        "fallback": fallback,
    }


def _doubt_of(answer: Answer) -> str:
    layout = answer.layout or {}
    return doubt(answer.text, layout.get("confidence"), layout.get("uncertain"), layout.get("garbled", ()))


def _escalated(tx: Tx, document: Any, attempts: Sequence[Attempt], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes after escalation: a page whose answer is worse than its text keeps the text. Let doubtful
    pages wait for the other provider."""
    held = work.held(tx, CONVERT, outcomes)
    known = escalation.known(tx, held)
    doubts, changed = {}, []
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        page_id, answer, row = attempt.unit.id, attempt.answer, known.get(attempt.unit.id)
        changed.append(outcome)
        if page_id not in held:
            continue
        if row is None:
            if answer and (reason := attempt.fallback or _doubt_of(answer)):
                doubts[page_id] = reason
        elif row.state == EscalationState.OPEN and answer:
            former = {"provider": row.former_provider, "model": row.former_model}
            if attempt.fallback and row.has_text:  # local conversion has no news about the page
                escalation.end(tx, [page_id], EscalationState.FAILED, attempt.fallback)
                changed[-1] = replace(outcome, values=former)
            elif not escalation.compare(tx, row, answer.text):
                changed[-1] = replace(outcome, values=former)
        elif row.state == EscalationState.OPEN and attempt.cost and escalation.room(tx, document).is_overdrawn:
            # Another attempt may cost more than the budget has left.
            error = UnitError(str(attempt.error), kind=ErrorKind.PERMANENT)
            changed[-1] = replace(outcome, error=error)
    escalation.offer(tx, document, doubts, has_text=True)
    return changed


def _store_layouts(session: Session, attempts: Sequence[Attempt], document: Any) -> None:
    """Store the layouts of pages with a new text, and delete those whose new text has none."""
    answers = {attempt.unit.id: attempt.answer for attempt in attempts if attempt.answer}
    known = [
        {"page_id": page_id, "data": answer.layout} for page_id, answer in answers.items() if answer.layout is not None
    ]
    # Only escalated pages and pages that a user retries (which do not use the cache) can have an old layout.
    retried = {attempt.unit.id for attempt in attempts if document.escalate or not attempt.unit.use_cache}
    unknown = [page_id for page_id, answer in answers.items() if answer.layout is None and page_id in retried]
    if known:
        upsert(session, LAYOUTS, known)
    if unknown:
        session.execute(delete(LAYOUTS).where(LAYOUTS.c.page_id.in_(unknown)))


def _ledger(*, is_sqlite: bool) -> Any:
    """Return the statement that adds an attempt to the ledger, once for each call; repeated, it only marks the entry as
    effective if this claim held."""
    insert: Any = sqlite.insert if is_sqlite else postgresql.insert
    entry = insert(ATTEMPTS)
    took_effect = or_(ATTEMPTS.c.effective, entry.excluded.effective)
    return entry.on_conflict_do_update(index_elements=["call_id"], set_={"effective": took_effect})


_LEDGER = {is_sqlite: _ledger(is_sqlite=is_sqlite) for is_sqlite in (False, True)}


def _record(tx: Tx, attempts: Sequence[Attempt], held: Collection[int]) -> None:
    """Write the ledger."""
    rows = []
    for attempt in attempts:
        unit, answer, error = attempt.unit, attempt.answer, attempt.error
        partial = _paid_for(attempt)
        model = (partial.model if partial else "") or attempt.model or unit.model
        kind, message = (str(error.kind), message_of(error)) if error else ("", None)
        rows.append(
            {
                "call_id": attempt.calls[0]["call_id"] if attempt.calls else None,
                "document_id": unit.document_id,
                "page": unit.page,
                "page_source": unit.page_source,
                "provider": attempt.provider or unit.provider,
                "model": storable(model)[:MAX_MODEL_CHARS],
                "prompt_hash": attempt.prompt_hash,
                "cache_key": attempt.cache_key,
                "cached": attempt.cached,
                "status": "completed" if answer else kind,
                "effective": unit.id in held,
                "error": message,
                "text": storable(partial.text) if partial else "",
                "reply": attempt.reply,
                "input_tokens": _tokens(attempt, "input_tokens"),
                "output_tokens": _tokens(attempt, "output_tokens"),
                "latency_ms": attempt.latency_ms,
                "cost": attempt.cost,
                "worker_id": unit.worker_id,
                "created_at": tx.now,
            }
        )
    if rows:
        tx.connection().execute(_LEDGER[tx.get_bind().dialect.name == "sqlite"], rows)


def _charge_calls(tx: Tx, attempts: Sequence[Attempt]) -> None:
    """Write a trace of each call, and add the cost of new calls to the document."""
    calls = [call for attempt in attempts for call in attempt.calls]
    new = traces.record_all(tx, calls)
    for call in calls:
        if call["call_id"] in new and call["cost"]:
            charge(tx, call)


def charge(session: Session, call: Mapping[str, Any]) -> None:
    """Add the cost of a new call to the document, and count it against the budget of an open escalation."""
    document_id, cost = call["scope_id"], call["cost"]
    session.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(cost=DOCUMENTS.c.cost + cost))
    escalation.spend(session, document_id, int(call["unit"]), cost)


def trace(
    unit: PageUnit,
    call_id: str,
    model: str,
    answer: Answer | None,
    error: UnitError | None,
    *,
    latency_ms: int,
    cost: float,
    queue: str,
    began_at: datetime,
) -> dict[str, Any]:
    """Return the columns of the record of a call for a page."""
    return {
        "call_id": call_id,
        "flow": "documents",
        "scope_id": unit.document_id,
        "unit": str(unit.page),
        "capability": "vision",
        "operation": PAGE_OPERATION,
        "provider": unit.provider,
        "model": storable((answer.model if answer else "") or model)[:MAX_MODEL_CHARS],
        "status": "ok" if answer else str(error.kind) if error else "",
        "latency_ms": latency_ms,
        "error": (message_of(error) if error else answer.usage.note if answer else "") or None,
        "input_tokens": answer.usage.input_tokens if answer else 0,
        "output_tokens": answer.usage.output_tokens if answer else 0,
        "cost": cost,
        "queue": queue,
        "created_at": began_at,
        "preview": preview(storable(answer.text)) if answer else "",
    }


def _tokens(attempt: Attempt, name: str) -> int:
    """Return the tokens of an attempt's calls; of an unrecorded call, the answer's tokens."""
    if attempt.calls:
        return sum(call[name] for call in attempt.calls)
    answer = _paid_for(attempt)
    return int(getattr(answer.usage, name)) if answer else 0


def _paid_for(attempt: Attempt) -> Answer | None:
    """Return the attempt's answer, even a truncated one, which is an error but costs money; None without an answer."""
    return attempt.answer or getattr(attempt.error, "answer", None)

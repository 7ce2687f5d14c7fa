"""Sends doubtful and failed pages to another provider, within the document's budget, and keeps the better text.

Everything happens in transactions that have locked the document, so its budget holds under concurrency. A page that
waits for room in the budget (WAITING) stays COMPLETED or FAILED; a page whose escalation is OPEN has its share of the
budget reserved. While pages wait, at least one escalation is open, so the document cannot end before them.
Rules: docs/sources/documents.md#escalation.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, case, delete, func, insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine.nouns import duration
from pipeline.engine.tables import portions, storable
from pipeline.engine.transaction import ReadTx, Tx
from pipeline.flows.documents.models import DOCUMENTS, ESCALATIONS, LAYOUTS, PAGES
from pipeline.flows.documents.rules.escalation import Budget, Room, judge
from pipeline.flows.documents.states import PAGE, EscalationState, PageEvent, PageStatus
from pipeline.providers import call_cost
from pipeline.providers.protocols import MOST_PASSES

PAGE_OPERATION = "page_to_markdown"
"""The operation that the trace of a page's call names."""
PORTION = 200
"""The most pages that one transaction admits while others wait for room."""
_S = EscalationState
_ENDED: dict[str, Any] = {"reserved": 0.0}


@dataclass(frozen=True)
class Counts:
    """Changes of a document's counters."""

    completed: int = 0
    failed: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.completed + other.completed, self.failed + other.failed)


def _of(document_id: str, *states: EscalationState) -> Any:
    return and_(ESCALATIONS.c.document_id == document_id, ESCALATIONS.c.state.in_(states))


def known(tx: Tx, page_ids: Collection[int]) -> dict[int, Any]:
    """Return the escalations of these pages by page id, with the pages' texts and layouts."""
    query = (
        select(ESCALATIONS, PAGES.c.content, LAYOUTS.c.data)
        .join(PAGES, PAGES.c.id == ESCALATIONS.c.page_id)
        .outerjoin(LAYOUTS, LAYOUTS.c.page_id == ESCALATIONS.c.page_id)
        .where(ESCALATIONS.c.page_id.in_(page_ids))
    )
    return {row.page_id: row for row in tx.execute(query)}


def compare(tx: Tx, row: Any, answer: str) -> bool:
    """End an open escalation, whose claim holds, with this answer; return whether the answer becomes the page's
    text."""
    if row.has_text:
        verdict = judge(answer, row.content, row.data)
        replaces, why = verdict.replaces, verdict.why
    else:
        replaces, why = True, "the page had no text"
    end(tx, [row.page_id], _S.REPLACED if replaces else _S.KEPT, why)
    return replaces


def end(tx: Tx, page_ids: Collection[int], state: EscalationState, outcome: str) -> None:
    """End the escalations of these pages."""
    values = {**_ENDED, "state": state, "outcome": storable(outcome), "ended_at": tx.now}
    for portion in portions(page_ids):
        tx.execute(update(ESCALATIONS).where(ESCALATIONS.c.page_id.in_(portion)).values(**values))


def spend(session: Session, document_id: str, page: int, cost: float) -> None:
    """Count the cost of a call for this page against the budget if its escalation is open."""
    which = (_of(document_id, _S.OPEN), ESCALATIONS.c.page == page)
    counted = update(ESCALATIONS).where(*which).values(cost=ESCALATIONS.c.cost + cost).returning(ESCALATIONS.c.page_id)
    if session.execute(counted).first():
        more = update(DOCUMENTS).where(DOCUMENTS.c.id == document_id)
        session.execute(more.values(escalated_cost=DOCUMENTS.c.escalated_cost + cost))


def offer(tx: Tx, document: Any, reasons: Mapping[int, str], *, has_text: bool) -> None:
    """Let these pages, by id with the reasons, wait for the document's other provider. Skip pages that it converted,
    and pages that had their escalation since the user's last request."""
    for portion in portions(reasons):
        columns = (PAGES.c.id, PAGES.c.page, PAGES.c.provider, PAGES.c.model)
        had = select(ESCALATIONS.c.page_id).where(ESCALATIONS.c.page_id == PAGES.c.id).exists()
        query = select(*columns).where(PAGES.c.id.in_(portion), PAGES.c.provider != document.escalate, ~had)
        rows = [
            {
                "page_id": row.id,
                "document_id": document.id,
                "page": row.page,
                "provider": document.escalate,
                "state": _S.WAITING,
                "reason": storable(reasons[row.id]),
                "outcome": "",
                "has_text": has_text,
                "former_provider": row.provider,
                "former_model": row.model,
                "reserved": 0.0,
                "cost": 0.0,
                "created_at": tx.now,
            }
            for row in tx.execute(query)
        ]
        if rows:
            tx.execute(insert(ESCALATIONS), rows)


def settle(tx: Tx, document: Any, done: Sequence[int], failed: Sequence[int]) -> Counts:
    """After these pages of a document that escalates were COMPLETED and FAILED: give failed escalations their earlier
    text back, offer other failed pages, and admit pages that wait. Return the changes of the counters."""
    counts = Counts(len(done), len(failed))
    if failed:
        counts += _keep_failed(tx, document, failed)
    return counts + admit(tx, document)


def _keep_failed(tx: Tx, document: Any, failed: Sequence[int]) -> Counts:
    rows = known(tx, failed)
    kept = 0
    errors = dict(tx.execute(select(PAGES.c.id, PAGES.c.error).where(PAGES.c.id.in_(failed))).all())
    for row in rows.values():
        if row.state == _S.OPEN:
            end(tx, [row.page_id], _S.FAILED, str(errors[row.page_id]))
            kept += _keep(tx, [row])
    offer(tx, document, {key: str(error) for key, error in errors.items() if key not in rows}, has_text=False)
    return Counts(kept, -kept)


def _keep(tx: Tx, rows: Sequence[Any]) -> int:
    """Complete the pages of these escalations that had a text, with that text; return their number."""
    kept = 0
    for row in rows:
        if row.has_text:
            former = {"provider": row.former_provider, "model": row.former_model}
            values = {**former, "error": None, "next_run_at": None, "updated_at": tx.now}
            kept += PAGE.move(tx, PAGES, PageEvent.KEEP, PAGES.c.id == row.page_id, **values)
    return kept


def give_up(tx: Tx, document: Any, outcome: str) -> list[int]:
    """End the open escalations of pages that have a text and that no worker holds; return the pages' ids. The caller
    counts them."""
    query = (
        select(ESCALATIONS)
        .join(PAGES, PAGES.c.id == ESCALATIONS.c.page_id)
        .where(_of(document.id, _S.OPEN), ESCALATIONS.c.has_text, PAGES.c.claim_id.is_(None))
    )
    rows = tx.execute(query).all()
    ids = [row.page_id for row in rows]
    end(tx, ids, _S.FAILED, outcome)
    _keep(tx, rows)
    return ids


def silent(provider: str, wait_s: float) -> str:
    """Return the outcome of an escalation whose provider was silent for too long."""
    return f"{provider} converted no page of this document for {duration(wait_s)}"


def withdraw(tx: Tx, document: Any) -> int:
    """Forget the escalations under way of a document that is cancelled; return the number of pages that are COMPLETED
    with their earlier text by that."""
    rows = tx.execute(select(ESCALATIONS).where(_of(document.id, _S.OPEN))).all()
    kept = _keep(tx, rows)
    for row in rows:
        if not row.has_text:
            former = {"provider": row.former_provider, "model": row.former_model}
            tx.execute(update(PAGES).where(PAGES.c.id == row.page_id).values(**former))
    tx.execute(delete(ESCALATIONS).where(_of(document.id, _S.OPEN, _S.WAITING)))
    return kept


def choose(tx: Tx, page_id: int, provider: str) -> None:
    """Note that a user chose the text of this provider for a page whose escalation has ended."""
    state = case((ESCALATIONS.c.provider == provider, _S.REPLACED), else_=_S.KEPT)
    which = update(ESCALATIONS).where(ESCALATIONS.c.page_id == page_id, ESCALATIONS.c.ended_at.is_not(None))
    tx.execute(which.values(state=state, outcome="a user chose this text"))


def forget(tx: Tx, document_id: str, *pages: Any) -> None:
    """Delete the escalations of pages that match these conditions: a user's request may escalate them again."""
    ids = select(PAGES.c.id).where(PAGES.c.document_id == document_id, *pages)
    tx.execute(delete(ESCALATIONS).where(ESCALATIONS.c.document_id == document_id, ESCALATIONS.c.page_id.in_(ids)))


def room(tx: ReadTx, document: Any) -> Room:
    """Return what the document's budget admits now."""
    budget = Budget(document.budget_cost, document.budget_pages)
    query = select(DOCUMENTS.c.escalated_cost, DOCUMENTS.c.escalated_pages).where(DOCUMENTS.c.id == document.id)
    spent, pages = tx.execute(query).one()
    if budget.cost is None:
        return Room(budget, spent, 0.0, pages, 0.0)
    reserved = select(func.coalesce(func.sum(ESCALATIONS.c.reserved), 0.0)).where(_of(document.id, _S.OPEN))
    each = _most_of_page(tx, document.escalate)
    return Room(budget, spent, tx.execute(reserved).scalar_one(), pages, each)


def _most_of_page(tx: ReadTx, provider: str) -> float:
    """Return the most that a page may cost: the longest answers of all its passes."""
    return MOST_PASSES * call_cost.of_call(tx, provider, "", PAGE_OPERATION, longest=True)


def reserve(tx: Tx, document: Any) -> float:
    """Reserve the price of the open escalations that were admitted without a budget in money; return the sum that all
    have reserved."""
    opened, reserved = _of(document.id, _S.OPEN), ESCALATIONS.c.reserved
    each = _most_of_page(tx, document.escalate)
    tx.execute(update(ESCALATIONS).where(opened, reserved == 0).values(reserved=each))
    return float(tx.execute(select(func.coalesce(func.sum(reserved), 0.0)).where(opened)).scalar_one())


def admit(tx: Tx, document: Any) -> Counts:
    """Send pages that wait to the other provider as far as the budget has room, and reserve their share. If it is
    spent, end the escalations of the others. Return the changes of the counters."""
    waits = _of(document.id, _S.WAITING)
    query = select(ESCALATIONS).where(waits).order_by(ESCALATIONS.c.page).limit(PORTION)
    counts = Counts()
    while rows := tx.execute(query).all():
        left = room(tx, document)
        admitted = rows[: left.now]
        if admitted:
            counts += _open(tx, document, admitted, left.each)
        if left.now is None or left.now >= len(rows):
            continue
        if room(tx, document).is_spent:
            unpaid = {**_ENDED, "state": _S.UNPAID, "outcome": "budget spent", "ended_at": tx.now}
            over = tx.execute(update(ESCALATIONS).where(waits).values(**unpaid).returning(ESCALATIONS.c.page_id)).all()
            more = update(DOCUMENTS).where(DOCUMENTS.c.id == document.id)
            tx.execute(more.values(unpaid_pages=DOCUMENTS.c.unpaid_pages + len(over)))
        break
    return counts


def _open(tx: Tx, document: Any, rows: Sequence[Any], reserved: float) -> Counts:
    ids = [row.page_id for row in rows]
    opened = {"state": _S.OPEN, "reserved": reserved, "created_at": tx.now}
    tx.execute(update(ESCALATIONS).where(ESCALATIONS.c.page_id.in_(ids)).values(**opened))
    failed = PAGES.c.status == PageStatus.FAILED
    were_failed = tx.execute(select(func.count()).select_from(PAGES).where(PAGES.c.id.in_(ids), failed)).scalar_one()
    values = {"provider": document.escalate, "model": "", "attempts": 0, "releases": 0, "released_at": None}
    PAGE.move(
        tx,
        PAGES,
        PageEvent.ESCALATE,
        PAGES.c.id.in_(ids),
        **values,
        error=None,
        next_run_at=None,
        updated_at=tx.now,
    )
    more = update(DOCUMENTS).where(DOCUMENTS.c.id == document.id)
    tx.execute(more.values(escalated_pages=DOCUMENTS.c.escalated_pages + len(ids)))
    tx.launch("documents", document.id)
    return Counts(were_failed - len(ids), -were_failed)

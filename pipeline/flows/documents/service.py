"""Commands on documents. Each is one transaction on one document, whose messages are launched after the commit.

Rules: docs/sources/documents.md#commands. The launch derives the messages from the row: see `plan`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine import accounts, announced, kept_answers, traces, work
from pipeline.engine.accounts import Part
from pipeline.engine.claims import FREE
from pipeline.engine.errors import UnitError, UserError
from pipeline.engine.tables import storable
from pipeline.engine.traces import AiCall
from pipeline.engine.transaction import ReadTx, Tx
from pipeline.flows.documents import files
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, ESCALATIONS, LAYOUTS, PAGES
from pipeline.flows.documents.queries import UnknownDocument, document_view, no_page
from pipeline.flows.documents.rules.doubt import doubt, is_doubtful
from pipeline.flows.documents.rules.escalation import NEVER, parse_budget
from pipeline.flows.documents.states import (
    AT_REST,
    DOCUMENT,
    PAGE,
    DocumentEvent,
    DocumentStatus,
    EscalationState,
    PageEvent,
    PageStatus,
    progress,
    resume_event,
)
from pipeline.flows.documents.views import DocumentView
from pipeline.flows.documents.work import escalation, text_index
from pipeline.flows.documents.work.document import lock
from pipeline.flows.documents.work.escalation import PAGE_OPERATION
from pipeline.flows.documents.work.page import CONVERT, end_of_pages
from pipeline.providers import call_cost, registry
from pipeline.reading.files.filetype import TEXT_TYPES
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

FLOW = "documents"
_RENEWS = frozenset({DocumentEvent.RETRY, DocumentEvent.RETRY_PAGES, DocumentEvent.REMERGE})
"""Commands that ask for a new result. The old result stays readable until the new one exists."""


Charge = Callable[[int], None]
"""Charges a caller for pages to convert again. A command calls it in its transaction, after all other checks; it raises
an error if the quota is used up. A repeated transaction calls it again."""


def free(_pages: int) -> None:
    """Charge nothing: callers on this machine have no quota."""


@dataclass(frozen=True)
class Choice:
    """Another provider or model for the pages to retry; empty: no change."""

    provider: str = ""
    model: str = ""

    def columns(self, settings: Settings, *current: str) -> dict[str, str]:
        """Return the columns to set on the pages to retry, whose providers are now `current`; empty without a choice.

        Raises `UserError` for an unknown provider, or a model that the chosen provider, else one of `current`, cannot
        have.
        """
        if not (self.provider or self.model):
            return {}
        for provider in [self.provider] if self.provider else current:
            registry.check(settings, provider, self.model)
        return {"provider": self.provider, "model": self.model} if self.provider else {"model": self.model}


def _chosen(choice: Choice, document: Any, settings: Settings, *current: str) -> dict[str, str]:
    """Return `choice.columns`; empty for a file that holds its text, which only this machine reads."""
    return {} if document.type in TEXT_TYPES else choice.columns(settings, *current)


def cancel(context: Context, document_id: str) -> DocumentView:
    """Stop a document in any state: it becomes CANCELLED, and its pages under way PENDING. Calls under way go on, but
    only the ledger gets their results.

    An earlier result stays readable. Raises `UnknownDocument`.
    """

    def act(tx: Tx, document: Any) -> None:
        if document.status != DocumentStatus.CANCELLED:
            _move(tx, document, DocumentEvent.CANCEL, **FREE, finished_at=tx.now)
            _cut_off(tx, document_id)
            work.give_back(tx, CONVERT, document, CONVERT.in_scope(document_id), counts=False)
            if document.escalate and (kept := escalation.withdraw(tx, document)):
                completed = DOCUMENTS.c.completed_count + kept
                tx.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(completed_count=completed))

    view = _change(context, document_id, act)
    files.remove_temp(context.settings, document_id)
    return view


def pause(context: Context, document_id: str, by: str = "") -> DocumentView:
    """Make the document PAUSED: pages under way finish, no others start. Harmless if it is paused already.

    A split or merge under way is discarded, and starts over later. `by`: the name of the API key that asks; empty: a
    user of this machine. Raises `IllegalTransition` at rest.
    """

    def act(tx: Tx, document: Any) -> None:
        if document.status != DocumentStatus.PAUSED:
            # Drop the document's own claim: a split or merge under way starts over.
            _move(tx, document, DocumentEvent.PAUSE, **FREE, paused_by=storable(by)[:200], paused_at=tx.now)

    return _change(context, document_id, act)


def resume(context: Context, document_id: str) -> DocumentView:
    """Continue a paused document at its next stage; if no page is outstanding, it may become PARTIAL_FAILED or FAILED.
    Raises `UserError` in any other state."""

    def act(tx: Tx, document: Any) -> None:
        if document.status != DocumentStatus.PAUSED:
            raise UserError(f"document {document_id} is not paused: it is {_name(document)}", code="illegal_state")
        event = resume_event(
            document.pages, document.completed_count, document.failed_count, allow_partial=document.allow_partial
        )
        ended = end_of_pages(tx, document, DOCUMENT.target(DocumentStatus.PAUSED, event))
        _move(tx, document, event, attempts=0, **ended)
        _admit(tx, document)

    return _change(context, document_id, act)


def retry(
    context: Context, document_id: str, choice: Choice = Choice(), *, fresh: bool = False, charge: Charge = free
) -> DocumentView:
    """Start over from splitting: delete the pages. The result stays until a new one exists.

    The ledger stays as the cache, which answers for pages that the same provider and model converted, unless the
    document was submitted without it. `choice`: for all pages. `fresh`: use no cache, now and in later retries. Raises
    `IllegalTransition` for a document that is not at rest, `UserError` for a bad `choice`.
    """

    def act(tx: Tx, document: Any) -> None:
        _start_over(tx, document, choice, fresh=fresh)
        charge(document.pages)

    return _change(context, document_id, act)


def retry_page(
    context: Context, document_id: str, page: int, choice: Choice = Choice(), *, charge: Charge = free
) -> DocumentView:
    """Make one COMPLETED or FAILED page convert again, without the cache. The old text stays until a new one exists.

    `page`: its position in the result. Raises `IllegalTransition` for a page in another state, or while the document is
    paused or being merged; `UserError` without the page, or for a bad `choice`.
    """

    def act(tx: Tx, document: Any) -> None:
        row = _page(tx, document_id, page)
        columns = _chosen(choice, document, context.settings, row.provider)
        PAGE.target(PageStatus(row.status), PageEvent.RETRY)
        _retry_pages(tx, document, PAGES.c.id == row.id, {**columns, "use_cache": False})
        charge(1)

    return _change(context, document_id, act)


def retry_failed(
    context: Context, document_id: str, choice: Choice = Choice(), *, charge: Charge = free
) -> DocumentView:
    """Make the FAILED pages, and the untried pages of a partial result, convert again. If there are none, merge a
    FAILED document again, or start it over. Harmless if nothing failed. Raises `IllegalTransition` for failed pages of
    a document that is paused or being merged. Rule: docs/sources/documents.md#commands."""

    def act(tx: Tx, document: Any) -> None:
        is_partial = document.status == DocumentStatus.PARTIAL_FAILED
        untried = is_partial and document.completed_count + document.failed_count < document.pages
        if not document.failed_count and not untried:
            if document.status != DocumentStatus.FAILED:
                return
            if document.pages and document.completed_count == document.pages:
                _remerge(tx, document, allow_partial=document.allow_partial)
                return
            _start_over(tx, document, choice)
            charge(document.pages)
            return
        failed = PAGES.c.status == PageStatus.FAILED
        missing = and_(
            PAGES.c.document_id == document_id, PAGES.c.status != PageStatus.COMPLETED if untried else failed
        )
        providers = tx.execute(select(PAGES.c.provider).where(missing).distinct())
        if columns := _chosen(choice, document, context.settings, *providers.scalars()):
            tx.execute(update(PAGES).where(missing).values(**columns))
        _retry_pages(tx, document, failed, {})
        charge(document.failed_count)  # the submission charged untried pages

    return _change(context, document_id, act)


def escalate(
    context: Context, document_id: str, provider: str = "", budget: str = "", *, charge: Charge = free
) -> DocumentView:
    """Send the doubtful and failed pages of a split document to another provider, within a `budget` of their own.

    `provider`: empty for the one that the document or the settings name. Leaves out pages that this provider has
    answered, whichever text was kept. Pages that are converted later follow them. Harmless without such pages. Raises
    `UserError` for a document without pages yet, without a provider to escalate to, or for a bad budget, and
    `IllegalTransition` for a document that is paused or being merged.
    """

    if provider == LOCAL:
        message = "doubtful pages go to a model, and local conversion is none: name another provider"
        raise UserError(message, code="usage")

    def act(tx: Tx, document: Any) -> None:
        if not document.pages:
            raise UserError(f"document {document_id} has no pages yet", code="illegal_state")
        if document.type in TEXT_TYPES:  # no model reads them better than this machine
            return
        own = document.escalate or other_provider(context.settings, document.provider, "", "").get("escalate", "")
        columns = other_provider(context.settings, document.provider, provider or own or NEVER, budget)
        if not columns["escalate"]:
            message = f"name the provider for the doubtful pages of document {document_id}: --provider NAME"
            raise UserError(message, code="usage")
        if admitted := _escalate(tx, _grant(tx, document, columns)):
            charge(admitted)

    return _change(context, document_id, act)


def _grant(tx: Tx, document: Any, columns: dict[str, Any]) -> Any:
    """Give the document the columns of `other_provider`, for a new request, and return its row. The budget is for this
    request: what earlier ones spent, and have reserved, comes on top."""
    totals: dict[str, Any] = {}
    if columns["budget_pages"] is not None:
        totals["budget_pages"] = columns["budget_pages"] + document.escalated_pages
    if columns["budget_cost"] is not None:
        reserved = escalation.reserve(tx, document)
        totals["budget_cost"] = columns["budget_cost"] + document.escalated_cost + reserved
    values = {**columns, **totals, "unpaid_pages": 0, "updated_at": tx.now}
    tx.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document.id).values(**values))
    return _lock(tx, document.id)


def _escalate(tx: Tx, document: Any) -> int:
    """Offer the document's doubtful and failed pages to its other provider; return how many it sends at once."""
    c = ESCALATIONS.c
    states = [EscalationState.OPEN, EscalationState.WAITING, EscalationState.REPLACED, EscalationState.KEPT]
    has_answer = and_(c.page_id == PAGES.c.id, c.provider == document.escalate, c.state.in_(states))
    doubtful = and_(PAGES.c.status == PageStatus.COMPLETED, PAGES.c.doubtful)
    is_failed = PAGES.c.status == PageStatus.FAILED
    which = and_(or_(doubtful, is_failed), ~select(c.page_id).where(has_answer).exists())
    query = (
        select(PAGES, LAYOUTS.c.data)
        .outerjoin(LAYOUTS, LAYOUTS.c.page_id == PAGES.c.id)
        .where(PAGES.c.document_id == document.id, which)
    )
    rows = tx.execute(query).all()
    escalation.forget(tx, document.id, which)
    for has_text in (True, False):
        reasons = {row.id: _reason(row) for row in rows if (row.status == PageStatus.COMPLETED) is has_text}
        escalation.offer(tx, document, reasons, has_text=has_text)
    counts = escalation.admit(tx, document)
    admitted: int = _lock(tx, document.id).escalated_pages - document.escalated_pages
    if admitted:
        _move(
            tx,
            document,
            DocumentEvent.RETRY_PAGES,
            error=None,
            attempts=0,
            finished_at=None,
            completed_count=document.completed_count + counts.completed,
            failed_count=document.failed_count + counts.failed,
        )
        _admit(tx, document)
    return admitted


def _reason(page: Any) -> str:
    """Return why to escalate a page, from its row with the `data` of its layout."""
    garbled = (page.data or {}).get("garbled", ())
    return page.error or doubt(page.content, page.confidence, page.uncertain_share, garbled) or "doubtful"


def other_provider(settings: Settings, provider: str, escalate: str, budget: str) -> dict[str, Any]:
    """Return the columns of a document for its escalation. `escalate` and `budget` are its user's choice; empty: the
    choice of the settings.

    Raises `UserError` for an unknown provider, a bad budget, or a budget in money without prices to keep it by.
    """
    profile = settings.providers.get(provider)
    default = (profile.escalate if profile else "") or settings.documents.escalate
    name = escalate or default
    if escalate == NEVER or name == provider:
        name = ""
    elif name:
        registry.check(settings, name)
    text = budget or (settings.documents.escalate_budget if name else "")
    try:
        most = parse_budget(text)
    except ValueError as error:
        raise UserError(str(error), code="usage") from None
    if budget and not name:
        message = "a budget needs a provider for the doubtful pages: name one with --escalate, other than the first"
        raise UserError(message, code="usage")
    to = settings.providers.get(name)
    if budget and most.cost is not None and to and not to.price(to.model):
        raise UserError(
            f"the provider '{name}' has no price for its model, so a budget in money cannot hold: set "
            f"PENSTOCK_PROVIDERS__{name.upper()}__PRICES, or give the budget in pages, such as 20p",
            code="usage",
        )
    return {"escalate": name, "budget": text, "budget_cost": most.cost, "budget_pages": most.pages}


def remerge(context: Context, document_id: str, *, allow_partial: bool = False) -> DocumentView:
    """Ask for a new merge of the pages' present texts; returns before it starts.

    With `allow_partial`, a missing page becomes a line with its reason; without it, raises `UserError`, even if the
    document was submitted with it. Raises `UserError` without converted pages, `IllegalTransition` unless the document
    is at rest.
    """

    def act(tx: Tx, document: Any) -> None:
        missing = document.pages - document.completed_count
        if not document.completed_count:
            raise UserError(f"document {document_id} has no converted pages to merge", code="nothing_to_do")
        if missing and not allow_partial:
            raise UserError(
                f"{missing} of {document.pages} pages of document {document_id} are missing: retry them "
                f"(`penstock documents retry {document_id} --failed`) or merge with --allow-partial",
                code="incomplete",
            )
        _remerge(tx, document, allow_partial=allow_partial or document.allow_partial)

    return _change(context, document_id, act)


def promote(context: Context, document_id: str, page: int, attempt_id: int) -> DocumentView:
    """Use the text of an attempt of the ledger as the page's text. If no page is missing, ask for a new merge, except
    of a CANCELLED document.

    `page`: its position in the result. Raises `UserError` for a document that is not at rest, or an attempt that is not
    of this page, or failed without a text. A completed attempt may have an empty text.
    """
    is_attempt = and_(ATTEMPTS.c.id == attempt_id, ATTEMPTS.c.document_id == document_id, ATTEMPTS.c.page == page)
    layout = _layout_of(context, is_attempt)  # before the transaction: parsing may take seconds

    def act(tx: Tx, document: Any) -> None:
        if document.status not in AT_REST:
            raise UserError(
                f"document {document_id} is {_name(document)}: wait for it or cancel it first", code="illegal_state"
            )
        row = _page(tx, document_id, page)
        attempt = tx.execute(
            select(ATTEMPTS.c.text, ATTEMPTS.c.status, ATTEMPTS.c.provider).where(is_attempt)
        ).one_or_none()
        if attempt is None or (attempt.status != "completed" and not attempt.text):
            raise UserError(
                f"page {page} of document {document_id} has no attempt {attempt_id} with a text; "
                f"see `penstock documents attempts {document_id} {page}`",
                code="unknown_attempt",
            )
        PAGE.target(PageStatus(row.status), PageEvent.PROMOTE)
        is_page = PAGES.c.id == row.id
        unknown = {"confidence": None, "uncertain_share": None}
        text = {"content": attempt.text, **unknown, "doubtful": is_doubtful(attempt.text, None)}
        PAGE.move(tx, PAGES, PageEvent.PROMOTE, is_page, **text, fallback=None, error=None, updated_at=tx.now)
        tx.execute(delete(LAYOUTS).where(LAYOUTS.c.page_id == row.id))
        if layout is not None:
            tx.execute(insert(LAYOUTS).values(page_id=row.id, data=layout))
        escalation.choose(tx, row.id, attempt.provider)
        was_failed = row.status == PageStatus.FAILED
        completed = document.completed_count + was_failed
        counts = {"completed_count": completed, "failed_count": document.failed_count - was_failed}
        tx.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(**counts, updated_at=tx.now))
        if completed == document.pages and document.status != DocumentStatus.CANCELLED:
            _remerge(tx, document, allow_partial=document.allow_partial)
        elif was_failed and not document.completed_count and document.status == DocumentStatus.FAILED:
            _move(tx, document, DocumentEvent.PROMOTE_PAGE, error=None)

    return _change(context, document_id, act)


def _layout_of(context: Context, is_attempt: ColumnElement[bool]) -> dict[str, Any] | None:
    """Return the layout of an attempt's reply, parsed again; None if it has none."""
    with context.db.read() as session:
        query = select(ATTEMPTS.c.reply, ATTEMPTS.c.model, ATTEMPTS.c.page_source).where(is_attempt)
        attempt = session.execute(query).one_or_none()
    if attempt is None or not attempt.reply or not attempt.reply.keys() & {"parts", "layout"}:
        return None
    from pipeline.providers.vision_pages import answer_of  # noqa: PLC0415  # parsers, which little else needs

    try:
        return answer_of(attempt.reply, attempt.page_source, attempt.model).layout
    except UnitError as error:
        if error.code != "unparsable":
            raise
        return None


def revive(
    context: Context, document_id: str, *, allow_partial: bool = False, escalate: str = "", budget: str = ""
) -> DocumentView:
    """Resume a document that was submitted again, with the least work that leads to its result: a merge, its missing
    pages, or all from splitting. Another `escalate` or `budget` than before sends its doubtful pages.

    Otherwise changes only `allow_partial` of a document that is not at rest, or that is COMPLETED and has its file.
    False leaves an earlier `allow_partial`.
    """

    def act(tx: Tx, document: Any) -> None:
        path = files.output_path(context.settings, document_id, document.filename)
        done = document.status == DocumentStatus.COMPLETED and document.merged_path is not None and path.exists()
        partial = allow_partial or document.allow_partial
        if document.status not in AT_REST or done:
            tx.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(allow_partial=partial))
        elif document.pages == 0:
            _move(
                tx,
                document,
                DocumentEvent.RETRY,
                allow_partial=partial,
                attempts=0,
                error=None,
                finished_at=None,
            )
            _admit(tx, document)
        elif document.completed_count == document.pages:
            _remerge(tx, document, allow_partial=partial)
        else:
            failed = PAGES.c.status == PageStatus.FAILED
            _retry_pages(tx, document, failed, {}, allow_partial=partial)
        wanted = other_provider(context.settings, document.provider, escalate, budget)
        is_new = (wanted["escalate"], wanted["budget"]) != (document.escalate, document.budget)
        if (escalate or budget) and is_new:
            now = _grant(tx, _lock(tx, document_id), wanted)
            if wanted["escalate"] and (now.status, DocumentEvent.RETRY_PAGES) in DOCUMENT.legal and now.pages:
                _escalate(tx, now)

    return _change(context, document_id, act)


def remove(context: Context, document_id: str) -> None:
    """Delete a document in any state, with its pages, ledger and files. Work under way finds no row to write to. Raises
    `UnknownDocument`."""

    removed = False

    def work(tx: Tx) -> None:
        nonlocal removed
        if removed and lock(tx, document_id) is None:
            return  # an earlier try committed, but its answer was lost
        _lock(tx, document_id)
        _cut_off(tx, document_id)
        remove_rows(tx, document_id)
        removed = True

    text_index.forget_ahead(context, document_id)
    context.db.run(work)
    files.remove_all(context.settings, document_id)
    kept_answers.erase(context.settings.answer_dir, "documents", document_id)


def remove_rows(session: Session, document_id: str) -> None:
    """Delete the rows of a document that the caller has locked. Its calls stay on record without their texts."""
    text_index.forget(session, document_id)
    for table in (PAGES, ATTEMPTS):
        session.execute(delete(table).where(table.c.document_id == document_id))
    session.execute(delete(DOCUMENTS).where(DOCUMENTS.c.id == document_id))
    announced.note(session, DOCUMENTS, [document_id])
    traces.erase(session, AiCall.flow == "documents", AiCall.scope_id == document_id)


def _change(context: Context, document_id: str, act: Callable[[Tx, Any], None]) -> DocumentView:
    """Lock the document, `act` on it, and return its new state, all in one transaction, whose commit launches its next
    work.

    Skip `act` if the document is in the state that an earlier try left: that try committed, but its answer was lost.
    """
    left: Any = None

    def work(tx: Tx) -> DocumentView:
        nonlocal left
        document = _lock(tx, document_id)
        if document != left:
            act(tx, document)
            left = _lock(tx, document_id)
        tx.launch(FLOW, document_id)
        return document_view(context, left)

    return context.db.run(work)


def _lock(session: Session, document_id: str) -> Any:
    document = lock(session, document_id)
    if document is None:
        raise UnknownDocument(document_id)
    return document


def _start_over(tx: Tx, document: Any, choice: Choice, *, fresh: bool = False) -> None:
    columns: dict[str, Any] = _chosen(choice, document, tx.settings, document.provider)
    most = parse_budget(document.budget)
    if columns:
        provider = columns.get("provider", document.provider)
        columns["model_name"] = registry.model_name(tx.settings, provider, choice.model)
    _move(
        tx,
        document,
        DocumentEvent.RETRY,
        **columns,
        pages=0,
        completed_count=0,
        failed_count=0,
        attempts=0,
        error=None,
        finished_at=None,
        budget_cost=most.cost,
        budget_pages=most.pages,
        escalated_pages=0,
        escalated_cost=0.0,
        unpaid_pages=0,
        use_cache=document.use_cache and not fresh,
    )
    text_index.forget(tx, document.id)
    tx.execute(delete(PAGES).where(PAGES.c.document_id == document.id))
    moved = _lock(tx, document.id)
    _admit(tx, moved, count=document.pages)


def _admit(tx: Tx, document: Any, *, count: int = 0, pages: Sequence[int] = ()) -> None:
    """Reserve on the caller's account the cost of the pages still to convert, or only of `pages`.

    `count`: the expected pages of a document that is not split yet.
    """
    is_open = and_(PAGES.c.document_id == document.id, PAGES.c.status.not_in([PageStatus.COMPLETED, PageStatus.FAILED]))
    kinds = (PAGES.c.provider, PAGES.c.model)
    for page in pages or [0]:
        which = and_(is_open, PAGES.c.page == page) if page else is_open
        rows = tx.execute(select(*kinds, func.count()).where(which).group_by(*kinds)).all()
        parts = [Part(units, page_cost(tx, provider, model)) for provider, model, units in rows]
        if not parts and not document.pages:  # not split yet
            each = page_cost(tx, document.provider, document.model)
            remaining = accounts.rest(tx, "documents", document.id)
            parts = [Part(count, each)] if count else remaining or [Part(1, each)]
        others = sum(units for provider, _, units in rows if provider != document.escalate)
        parts += escalation_parts(tx, document, others if rows else sum(part.units for part in parts))
        if parts:
            unit = str(page) if page else ""
            accounts.admit(tx, "documents", {document.id: parts}, unit=unit)


def escalation_parts(tx: ReadTx, document: Any, pages: int) -> list[Part]:
    """Return the estimate for the escalation of these pages: all of them, within the document's budget."""
    if not document.escalate or not pages:
        return []
    most = min(pages, document.budget_pages) if document.budget_pages is not None else pages
    each = page_cost(tx, document.escalate, "")
    if document.budget_cost is not None and most:
        each = min(each, document.budget_cost / most)
    return [Part(most, each)] if most and each else []


def page_cost(tx: ReadTx, provider: str, model: str) -> float:
    """Return the estimated cost of converting a page, the highest of the provider and its fallbacks; 0 without
    prices."""
    return call_cost.of_call(tx, provider, model, PAGE_OPERATION)


def _cut_off(tx: Tx, document_id: str) -> None:
    """End the reservations of a document, except for the calls under way."""
    claimed = and_(PAGES.c.document_id == document_id, PAGES.c.claim_id.is_not(None))
    under_way = tx.execute(select(func.count()).select_from(PAGES).where(claimed)).scalar_one()
    accounts.cut_off(tx, "documents", [document_id], under_way)


def _retry_pages(tx: Tx, document: Any, which: Any, columns: dict[str, Any], *, allow_partial: bool = False) -> None:
    """Make the matching COMPLETED and FAILED pages RETRYING with these `columns`, subtract them from the counters, and
    move the document to PROCESSING. Raises `UserError` for a document that is not split, `IllegalTransition` for one
    that is paused or being merged."""
    if not document.pages:
        raise UserError(
            f"document {document.id} has no pages yet: use `penstock documents retry`", code="illegal_state"
        )
    retried = and_(PAGES.c.document_id == document.id, which)
    rows = tx.execute(select(PAGES.c.page, PAGES.c.status).where(retried)).all()
    counted = Counter(row.status for row in rows)
    escalation.forget(tx, document.id, which)
    PAGE.move(
        tx, PAGES, PageEvent.RETRY, retried, **columns, attempts=0, next_run_at=None, error=None, updated_at=tx.now
    )
    _move(
        tx,
        document,
        DocumentEvent.RETRY_PAGES,
        error=None,
        attempts=0,
        finished_at=None,
        allow_partial=allow_partial or document.allow_partial,
        completed_count=document.completed_count - counted[PageStatus.COMPLETED],
        failed_count=document.failed_count - counted[PageStatus.FAILED],
    )
    # Other callers may have paid for the rest of a document that is at work.
    at_work = document.status in {DocumentStatus.PROCESSING, DocumentStatus.READY_TO_MERGE}
    _admit(tx, document, pages=[row.page for row in rows] if at_work else ())


def _remerge(tx: Tx, document: Any, *, allow_partial: bool) -> None:
    _move(
        tx,
        document,
        DocumentEvent.REMERGE,
        allow_partial=allow_partial,
        error=None,
        attempts=0,
        finished_at=None,
    )


def _move(tx: Tx, document: Any, event: DocumentEvent, **values: Any) -> None:
    """Move a locked document. Raises `IllegalTransition`, whose message tells the user why."""
    status = DOCUMENT.target(DocumentStatus(document.status), event)
    completed = values.get("completed_count", document.completed_count)
    values = {
        "progress": progress(status, values.get("pages", document.pages), completed, document.progress),
        "updated_at": tx.now,
        **values,
    }
    if event in _RENEWS:
        values["outdated"] = document.merged_path is not None
    DOCUMENT.move(tx, DOCUMENTS, event, DOCUMENTS.c.id == document.id, **values)


def _page(session: Session, document_id: str, page: int) -> Any:
    row = session.execute(select(PAGES).where(PAGES.c.document_id == document_id, PAGES.c.page == page)).one_or_none()
    if row is None:
        raise no_page(session, document_id, page)
    return row


def _name(document: Any) -> str:
    return DocumentStatus(document.status).name

"""What a user can ask for. Each function is one transaction on one document; the caller launches it afterwards.

Source 001, section 6. Launching is `tasks.documents.launch`: it derives from the row what is to be done.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import and_, delete, func, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE
from pipeline.engine.errors import UserError
from pipeline.engine.views import view_of
from pipeline.flows.documents import files
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, LAYOUTS, PAGES
from pipeline.flows.documents.states import (
    AT_REST,
    DOCUMENT,
    PAGE,
    DocumentEvent,
    DocumentStatus,
    PageEvent,
    PageStatus,
    progress,
    resume_event,
)
from pipeline.flows.documents.views import DocumentView
from pipeline.flows.documents.work.page import lock
from pipeline.providers import registry
from pipeline.settings import Settings
from pipeline.storage.context import Context


class UnknownDocument(UserError):
    """There is no document with this id."""

    def __init__(self, document_id: str) -> None:
        super().__init__(f"there is no document {document_id}; see `penstock documents list`", code="unknown_document")


@dataclass(frozen=True)
class Choice:
    """Another provider or model for pages that are retried; empty: as before."""

    provider: str = ""
    model: str = ""

    def columns(self, settings: Settings, *current: str) -> dict[str, str]:
        """Columns of the pages it applies to, whose providers are `current`. Raises `UserError` if it cannot work."""
        if not (self.provider or self.model):
            return {}
        for provider in [self.provider] if self.provider else current:
            registry.check(settings, provider, self.model)
        return {"provider": self.provider, "model": self.model} if self.provider else {"model": self.model}


def cancel(context: Context, document_id: str) -> DocumentView:
    """Stop a document, in whatever state; always wins. Pages under way are taken back and their results discarded."""

    def work(session: Session) -> DocumentView:
        document = _get(session, document_id)
        if document.status != DocumentStatus.CANCELLED:
            _move(session, document, DocumentEvent.CANCEL, **FREE, finished_at=_now())
            _take_back_pages(session, document_id)
        return _view(session, document_id)

    view = context.db.run(work)
    files.remove_temp(context.settings, document_id)
    return view


def pause(context: Context, document_id: str) -> DocumentView:
    """Let pages under way end, and begin no others. Harmless if it is paused."""

    def work(session: Session) -> DocumentView:
        document = _get(session, document_id)
        if document.status != DocumentStatus.PAUSED:
            # The document's own claim (a split or a merge under way) is taken away: that stage begins anew.
            _move(session, document, DocumentEvent.PAUSE, **FREE)
        return _view(session, document_id)

    return context.db.run(work)


def resume(context: Context, document_id: str) -> DocumentView:
    """Go on with a paused document, with whatever is still to do."""

    def work(session: Session) -> DocumentView:
        document = _get(session, document_id)
        if document.status != DocumentStatus.PAUSED:
            raise UserError(f"document {document_id} is not paused: it is {_name(document)}", code="illegal_state")
        event = resume_event(
            document.pages, document.completed_count, document.failed_count, allow_partial=document.allow_partial
        )
        ended = {"finished_at": _now()} if event is DocumentEvent.RESUME_PARTIAL else {}
        _move(session, document, event, attempts=0, **ended)
        return _view(session, document_id)

    return context.db.run(work)


def retry(context: Context, document_id: str, choice: Choice = Choice(), *, fresh: bool = False) -> DocumentView:
    """Do the whole document anew, from splitting. The ledger stays, so that what was paid is not paid again.

    `fresh`: ask the provider again even for pages that the cache knows.
    """

    def work(session: Session) -> DocumentView:
        document = _get(session, document_id)
        columns = choice.columns(context.settings, document.provider)
        if columns:
            provider = columns.get("provider", document.provider)
            columns["model_name"] = registry.model_name(context.settings, provider, choice.model)
        _move(
            session, document, DocumentEvent.RETRY, **columns, pages=0, completed_count=0, failed_count=0, attempts=0,
            error=None, merged_path=None, finished_at=None, use_cache=document.use_cache and not fresh,
        )  # fmt: skip
        session.execute(delete(PAGES).where(PAGES.c.document_id == document_id))
        return _view(session, document_id)

    return context.db.run(work)


def retry_page(context: Context, document_id: str, page: int, choice: Choice = Choice()) -> DocumentView:
    """Convert one COMPLETED or FAILED page again, asking the provider anew. Its text stays until there is a new one."""

    def work(session: Session) -> DocumentView:
        document = _get(session, document_id)
        row = _page(session, document_id, page)
        columns = choice.columns(context.settings, row.provider)
        PAGE.target(PageStatus(row.status), PageEvent.RETRY)
        _retry_pages(session, document, PAGES.c.id == row.id, **columns, use_cache=False)
        return _view(session, document_id)

    return context.db.run(work)


def retry_failed(context: Context, document_id: str, choice: Choice = Choice()) -> DocumentView:
    """Convert all FAILED pages again."""

    def work(session: Session) -> DocumentView:
        document = _get(session, document_id)
        if not document.failed_count:
            raise UserError(f"document {document_id} has no failed page", code="nothing_to_do")
        failed = PAGES.c.status == PageStatus.FAILED
        providers = session.execute(
            select(PAGES.c.provider).where(PAGES.c.document_id == document_id, failed).distinct()
        )
        _retry_pages(session, document, failed, **choice.columns(context.settings, *providers.scalars()))
        return _view(session, document_id)

    return context.db.run(work)


def remerge(context: Context, document_id: str, *, allow_partial: bool = False) -> DocumentView:
    """Merge the pages again. With `allow_partial`, gaps are marked where pages failed."""

    def work(session: Session) -> DocumentView:
        document = _get(session, document_id)
        _check_mergeable(document, allow_partial=allow_partial)
        _remerge(session, document, allow_partial=allow_partial or document.allow_partial)
        return _view(session, document_id)

    return context.db.run(work)


def promote(context: Context, document_id: str, page: int, attempt_id: int) -> DocumentView:
    """Make the text of an older attempt the page's text, and merge again where nothing is missing."""

    def work(session: Session) -> DocumentView:
        document = _get(session, document_id)
        if document.status not in AT_REST:
            raise UserError(f"document {document_id} is {_name(document)}: wait or cancel first", code="illegal_state")
        row = _page(session, document_id, page)
        text = _attempt_text(session, document_id, page, attempt_id)
        was_failed = row.status == PageStatus.FAILED
        PAGE.target(PageStatus(row.status), PageEvent.PROMOTE)
        PAGE.move(session, PAGES, PageEvent.PROMOTE, PAGES.c.id == row.id, content=text, error=None, updated_at=_now())
        session.execute(delete(LAYOUTS).where(LAYOUTS.c.page_id == row.id))
        session.execute(
            update(DOCUMENTS)
            .where(DOCUMENTS.c.id == document_id)
            .values(
                completed_count=document.completed_count + was_failed,
                failed_count=document.failed_count - was_failed,
                updated_at=_now(),
            )
        )
        document = _get(session, document_id)
        if document.completed_count == document.pages and document.status != DocumentStatus.CANCELLED:
            _remerge(session, document, allow_partial=document.allow_partial)
        return _view(session, document_id)

    return context.db.run(work)


def revive(context: Context, document_id: str, *, allow_partial: bool = False) -> DocumentView:
    """Go on with a document at rest that was asked for again; does the least that can bring its result.

    A COMPLETED one whose file is there, and one that is not at rest, stay as they are.
    """

    def work(session: Session) -> DocumentView:
        document = _get(session, document_id)
        merged = (
            document.merged_path is not None
            and files.output_path(context.settings, document_id, document.filename).exists()
        )
        partial = allow_partial or document.allow_partial
        if document.status not in AT_REST or (document.status == DocumentStatus.COMPLETED and merged):
            session.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(allow_partial=partial))
            return _view(session, document_id)
        if document.pages == 0:
            _move(
                session, document, DocumentEvent.RETRY, allow_partial=partial, attempts=0, error=None, finished_at=None
            )
        elif document.completed_count == document.pages:
            _remerge(session, document, allow_partial=partial)
        else:
            _retry_pages(session, document, PAGES.c.status == PageStatus.FAILED, allow_partial=partial)
        return _view(session, document_id)

    return context.db.run(work)


def remove(context: Context, document_id: str) -> None:
    """Delete a document with its pages, ledger and files. What runs is fenced off: there is no row left to write."""

    def work(session: Session) -> None:
        _get(session, document_id)
        for table in (PAGES, ATTEMPTS):
            session.execute(delete(table).where(table.c.document_id == document_id))
        session.execute(delete(DOCUMENTS).where(DOCUMENTS.c.id == document_id))

    context.db.run(work)
    files.remove_all(context.settings, document_id)


def _retry_pages(session: Session, document: Any, which: Any, **columns: Any) -> None:
    """Make matching pages RETRYING, uncount them, and let the document process them."""
    if not document.pages:
        raise UserError(
            f"document {document.id} has no pages yet: use `penstock documents retry`", code="illegal_state"
        )
    document_columns = {key: columns.pop(key) for key in ("allow_partial",) if key in columns}
    mine = and_(PAGES.c.document_id == document.id, which)
    states = session.execute(select(PAGES.c.status, func.count()).where(mine).group_by(PAGES.c.status))
    counted: dict[int, int] = dict(states.all())
    PAGE.move(
        session, PAGES, PageEvent.RETRY, mine, **columns, attempts=0, next_run_at=None, error=None, updated_at=_now()
    )
    completed = document.completed_count - counted.get(PageStatus.COMPLETED, 0)
    _move(
        session, document, DocumentEvent.RETRY_PAGES, **document_columns, completed_count=completed,
        failed_count=document.failed_count - counted.get(PageStatus.FAILED, 0),
        error=None, attempts=0, finished_at=None,
    )  # fmt: skip


def _remerge(session: Session, document: Any, *, allow_partial: bool) -> None:
    _move(
        session, document, DocumentEvent.REMERGE, allow_partial=allow_partial, error=None, attempts=0, finished_at=None
    )


def _check_mergeable(document: Any, *, allow_partial: bool) -> None:
    missing = document.pages - document.completed_count
    if not document.completed_count:
        raise UserError(f"document {document.id} has no converted page to merge", code="nothing_to_do")
    if missing and not allow_partial:
        raise UserError(
            f"{missing} of {document.pages} pages of document {document.id} are missing: retry them "
            f"(`penstock documents retry {document.id} --failed`) or merge with --allow-partial",
            code="incomplete",
        )


def _take_back_pages(session: Session, document_id: str) -> None:
    mine = and_(PAGES.c.document_id == document_id, PAGES.c.claim_id.is_not(None))
    back = {**FREE, "attempts": PAGES.c.attempts - 1, "updated_at": _now()}
    PAGE.move(session, PAGES, PageEvent.GIVE_BACK, mine, **back)


def _move(session: Session, document: Any, event: DocumentEvent, **values: Any) -> None:
    """Move a locked document, or raise `IllegalTransition` with a sentence for the user."""
    status = DOCUMENT.target(DocumentStatus(document.status), event)
    completed = values.get("completed_count", document.completed_count)
    values = {
        "progress": progress(status, values.get("pages", document.pages), completed, document.progress),
        "launches": 0, "launch_due_at": None, "updated_at": _now(), **values,
    }  # fmt: skip
    DOCUMENT.move(session, DOCUMENTS, event, DOCUMENTS.c.id == document.id, **values)


def _get(session: Session, document_id: str) -> Any:
    document = lock(session, document_id)
    if document is None:
        raise UnknownDocument(document_id)
    return document


def _page(session: Session, document_id: str, page: int) -> Any:
    row = session.execute(select(PAGES).where(PAGES.c.document_id == document_id, PAGES.c.page == page)).one_or_none()
    if row is None:
        raise UserError(f"document {document_id} has no page {page}", code="unknown_page")
    return row


def _attempt_text(session: Session, document_id: str, page: int, attempt_id: int) -> str:
    row = session.execute(
        select(ATTEMPTS.c.text, ATTEMPTS.c.status).where(
            ATTEMPTS.c.id == attempt_id, ATTEMPTS.c.document_id == document_id, ATTEMPTS.c.page == page
        )
    ).one_or_none()
    if row is None or (row.status != "completed" and not row.text):
        raise UserError(
            f"page {page} of document {document_id} has no attempt {attempt_id} with a text; "
            f"see `penstock documents attempts {document_id} {page}`",
            code="unknown_attempt",
        )
    return str(row.text)


def _view(session: Session, document_id: str) -> DocumentView:
    return view_of(DocumentView, _get(session, document_id))


def _name(document: Any) -> str:
    return DocumentStatus(document.status).name


def _now() -> datetime:
    return datetime.now(UTC)

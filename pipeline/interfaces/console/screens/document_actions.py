"""The actions on a document's screen, with the API's rights and quotas."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from starlette.responses import Response

from pipeline.flows.documents.states import DocumentStatus
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.document_acts import choices, chosen
from pipeline.interfaces.console.words import plural
from pipeline.interfaces.http.dependencies import ByCaller, InContext, spender, writer
from pipeline.interfaces.http.fields import Choice, HexId, Line, PageNumber, RowId, Strict
from pipeline.interfaces.http.submission import Budget
from pipeline.operations import documents

router = APIRouter(prefix="/console/documents", include_in_schema=False, dependencies=writer)


class RetryForm(Strict):
    """The provider and model of a retry, and whether to bypass the cache."""

    choice: Annotated[Line, Field(description="A provider and a model; empty for no change.")] = ""
    model: Choice = ""
    fresh: bool = False


def _how(context: InContext, form: Annotated[RetryForm, Form()]) -> tuple[dict[str, str], bool]:
    try:
        provider, model = chosen(form.choice, form.model, choices(context.settings))
    except ValueError as error:
        raise RequestValidationError([{"loc": ("body", "choice"), "msg": str(error), "type": "value_error"}]) from None
    return {"provider": provider, "model": model}, form.fresh


How = Annotated[tuple[dict[str, str], bool], Depends(_how)]


def _by(choice: dict[str, str]) -> str:
    named = " · ".join(part for part in choice.values() if part)
    return f" by {named}" if named else ""


@router.post("/{document_id}/pause")
def pause(request: Request, caller: ByCaller, document_id: HexId) -> Response:
    """Let pages in progress finish, and start no others."""
    document = documents.pause.by(caller, document_id)
    return done(request, f"{document.filename} is paused. Pages in progress finish.")


@router.post("/{document_id}/resume", dependencies=spender)
def resume(request: Request, caller: ByCaller, document_id: HexId) -> Response:
    """Continue a paused document."""
    return done(request, f"{documents.resume.by(caller, document_id).filename} continues.")


@router.post("/{document_id}/cancel")
def cancel(request: Request, caller: ByCaller, document_id: HexId) -> Response:
    """Cancel the document permanently."""
    return done(request, f"{documents.cancel.by(caller, document_id).filename} is cancelled.")


@router.post("/{document_id}/remerge")
def remerge(
    request: Request, caller: ByCaller, document_id: HexId, allow_partial: Annotated[bool, Form()] = False
) -> Response:
    """Start to merge the pages into the result again; `allow_partial`: even if pages failed, with marks for the
    gaps."""
    document = documents.remerge.by(caller, document_id, allow_partial=allow_partial)
    gaps = document.pages - document.completed_count
    without = f" without {plural(gaps, 'page')}" if gaps else ""
    return done(request, f"{document.filename} is being merged{without}.")


@router.post("/{document_id}/retry", dependencies=spender)
def retry(request: Request, caller: ByCaller, document_id: HexId, how: How) -> Response:
    """Start to convert the whole document again."""
    choice, fresh = how
    document = documents.retry.by(caller, document_id, **choice, fresh=fresh)
    return done(request, f"{document.filename} is being converted again{_by(choice)}.")


class EscalationForm(Strict):
    """Where the doubtful pages go, and the most that this may cost."""

    provider: Choice = ""
    budget: Budget = ""


@router.post("/{document_id}/escalate", dependencies=spender)
def escalate(
    request: Request, caller: ByCaller, document_id: HexId, form: Annotated[EscalationForm, Form()]
) -> Response:
    """Send the doubtful and failed pages to another provider."""
    before = documents.status.by(caller, document_id).escalated_pages
    document = documents.escalate.by(caller, document_id, provider=form.provider, budget=form.budget)
    if not (went := document.escalated_pages - before):
        left = f": the budget leaves {plural(document.unpaid_pages, 'page')}" if document.unpaid_pages else ""
        return done(request, f"No page of {document.filename} goes to {document.escalate}{left}.")
    return done(request, f"{plural(went, 'page')} of {document.filename} sent to {document.escalate}.")


@router.post("/{document_id}/retry-failed", dependencies=spender)
def retry_failed(request: Request, caller: ByCaller, document_id: HexId, how: How) -> Response:
    """Start to convert the failed pages and untried pages of a partial result. Without any, merge or start a failed
    document again."""
    choice, _ = how
    before = documents.status.by(caller, document_id)
    document = documents.retry_failed.by(caller, document_id, **choice)
    if not before.failed_count:
        if before.status is DocumentStatus.PARTIAL_FAILED:
            return done(request, f"The missing pages of {document.filename} are being converted{_by(choice)}.")
        if before.status is not DocumentStatus.FAILED:
            return done(request, f"No page of {document.filename} has failed: nothing to do.")
        return done(request, f"{document.filename} is being {'merged' if document.pages else 'converted'} again.")
    return done(
        request, f"{plural(before.failed_count, 'page')} of {document.filename} being converted again{_by(choice)}."
    )


@router.post("/{document_id}/pages/{page}/retry", dependencies=spender)
def retry_page(request: Request, caller: ByCaller, document_id: HexId, page: PageNumber, how: How) -> Response:
    """Start to convert one page again. It keeps its old text until the new one is ready."""
    choice, _ = how
    documents.retry_page.by(caller, document_id, page, **choice)
    return done(
        request,
        f"Page {page} is being converted again{_by(choice)}. Its current text stays until the new one is ready.",
    )


@router.post("/{document_id}/pages/{page}/attempts/{attempt}/promote")
def promote(request: Request, caller: ByCaller, document_id: HexId, page: PageNumber, attempt: RowId) -> Response:
    """Make an attempt's text the page's text."""
    documents.promote.by(caller, document_id, page, attempt)
    return done(request, f"Page {page} now has the text of attempt {attempt}.")


@router.post("/{document_id}/delete")
def delete(request: Request, caller: ByCaller, document_id: HexId) -> Response:
    """Delete the document with its pages, attempts and files."""
    filename = documents.status.by(caller, document_id).filename
    documents.delete.by(caller, document_id)
    return done(request, f"{filename} is deleted.", to="/console/documents")

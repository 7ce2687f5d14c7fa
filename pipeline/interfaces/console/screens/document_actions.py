"""What one does with a document on its screen: the same as the API, with the same rights and quotas."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from starlette.responses import Response

from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.document_acts import choices, chosen
from pipeline.interfaces.console.words import plural
from pipeline.interfaces.http.dependencies import InContext, spender, writer
from pipeline.interfaces.http.document_portions import convert_again, whose
from pipeline.interfaces.http.fields import HexId, Line, PageNumber, RowId, Strict
from pipeline.interfaces.rest.document_shapes import Choice, FreshOptions, RetryOptions
from tasks import documents as flow
from tasks.documents import DocumentStatus

router = APIRouter(prefix="/console/documents", include_in_schema=False, dependencies=writer)


class Again(Strict):
    """Who converts it again."""

    choice: Annotated[Line, Field(description="A provider and a model; empty for no change.")] = ""
    model: Choice = ""
    fresh: bool = False


def _options(context: InContext, again: Annotated[Again, Form()]) -> tuple[RetryOptions, bool]:
    try:
        provider, model = chosen(again.choice, again.model, choices(context.settings))
    except ValueError as error:
        raise RequestValidationError([{"loc": ("body", "choice"), "msg": str(error), "type": "value_error"}]) from None
    return RetryOptions(provider=provider, model=model), again.fresh


Options = Annotated[tuple[RetryOptions, bool], Depends(_options)]


def _by(options: RetryOptions) -> str:
    named = " · ".join(part for part in (options.provider, options.model) if part)
    return f" by {named}" if named else ""


@router.post("/{document_id}/pause")
def pause(request: Request, document_id: HexId) -> Response:
    """Let the pages under way end, and start no others."""
    found = flow.pause(document_id, by=whose(request))
    return done(request, f"{found.filename} is paused. Pages under way still end.")


@router.post("/{document_id}/resume", dependencies=spender)
def resume(request: Request, document_id: HexId) -> Response:
    """Go on."""
    return done(request, f"{flow.resume(document_id).filename} goes on.")


@router.post("/{document_id}/cancel")
def cancel(request: Request, document_id: HexId) -> Response:
    """Stop it for good."""
    return done(request, f"{flow.cancel(document_id).filename} is cancelled.")


@router.post("/{document_id}/remerge")
def remerge(request: Request, document_id: HexId, allow_partial: Annotated[bool, Form()] = False) -> Response:
    """Write the result again."""
    found = flow.remerge(document_id, allow_partial=allow_partial)
    gaps = found.pages - found.completed_count
    without = f" without {plural(gaps, 'page')}" if gaps else ""
    return done(request, f"{found.filename} is being merged{without}.")


@router.post("/{document_id}/retry", dependencies=spender)
def retry(request: Request, document_id: HexId, options: Options) -> Response:
    """Convert all of it again."""
    given, fresh = options
    found = convert_again(request, document_id, FreshOptions(**given.model_dump(), fresh=fresh), flow.retry)
    return done(request, f"{found.filename} is being converted again{_by(given)}.")


@router.post("/{document_id}/retry-failed", dependencies=spender)
def retry_failed(request: Request, document_id: HexId, options: Options) -> Response:
    """Convert the failed pages again."""
    given, _ = options
    before = flow.status(document_id)
    found = convert_again(request, document_id, given, flow.retry_failed)
    if not before.failed_count:
        if before.status is not DocumentStatus.FAILED:
            return done(request, f"No page of {found.filename} has failed: there is nothing to do.")
        return done(request, f"{found.filename} is being {'merged' if found.pages else 'converted'} again.")
    return done(
        request, f"{plural(before.failed_count, 'page')} of {found.filename} being converted again{_by(given)}."
    )


@router.post("/{document_id}/pages/{page}/retry", dependencies=spender)
def retry_page(request: Request, document_id: HexId, page: PageNumber, options: Options) -> Response:
    """Convert one page again."""
    given, _ = options
    convert_again(request, document_id, given, flow.retry_page, page)
    return done(request, f"Page {page} is being converted again{_by(given)}. Its text stays until there is a new one.")


@router.post("/{document_id}/pages/{page}/attempts/{attempt}/promote")
def promote(request: Request, document_id: HexId, page: PageNumber, attempt: RowId) -> Response:
    """Make an attempt's text the page's."""
    flow.promote(document_id, page, attempt)
    return done(request, f"Page {page} has the text of attempt {attempt} now.")


@router.post("/{document_id}/delete")
def delete(request: Request, document_id: HexId) -> Response:
    """Delete it with all that belongs to it."""
    filename = flow.status(document_id).filename
    flow.delete(document_id)
    return done(request, f"{filename} is deleted.", to="/console/documents")

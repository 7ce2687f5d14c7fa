"""`/api/v1/documents/…`: actions on a document, on one of its pages, and on all that match."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from pipeline.flows.documents.catalog import Filter
from pipeline.flows.documents.views import DocumentView
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, spender, writer
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Choice, HexId, Line, PageNumber, RowId, Strict
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.submission import Budget
from pipeline.interfaces.rest.documents import Status, accepted
from pipeline.operations import documents
from pipeline.operations.documents import Skipped, Verb

router = APIRouter(
    prefix="/documents", tags=["documents"], dependencies=writer, responses=documented(404, 409), route_class=JsonRoute
)


MOST_AT_ONCE = 500
"""The most documents in one request; a cursor leads to the others."""


class DocumentFilter(Strict):
    """The filter of the list."""

    status: list[Status] = Field(default_factory=list, max_length=10)
    q: Line = ""
    created_from: At | None = None
    created_before: At | None = None


class Selection(Strict):
    """The documents: either `ids`, or a `filter` (none: all) with `all_matching`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"filter": {"status": ["PARTIAL_FAILED"]}, "all_matching": True}],
            "oneOf": [
                {"required": ["ids"], "properties": {"ids": {"type": "array"}, "all_matching": {"const": False}}},
                {
                    "required": ["all_matching"],
                    "properties": {"ids": {"type": "null"}, "all_matching": {"const": True}},
                },
            ],
        },
    )
    ids: Annotated[list[HexId], Field(max_length=MOST_AT_ONCE)] | None = None
    filter: DocumentFilter = Field(default_factory=DocumentFilter)
    all_matching: StrictBool = Field(default=False, description="Must be true to act on all that match.")
    allow_partial: StrictBool = Field(default=False, description="With `remerge`: mark gaps for failed pages.")
    cursor: Line | None = Field(
        default=None, description="`next_cursor` of the last answer, to continue with the next documents."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> "Selection":
        if (self.ids is None) is not self.all_matching:
            raise ValueError("give ids, or a filter with all_matching: true")
        return self


class RetryOptions(Strict):
    """Another provider or model for the conversion; empty: no change."""

    provider: Choice = ""
    model: Choice = ""


class FreshOptions(RetryOptions):
    """The options of a retry of a whole document."""

    fresh: StrictBool = Field(default=False, description="Call the provider even for cached pages.")


class EscalateOptions(Strict):
    """Where doubtful and failed pages go, and the most that this request may cost."""

    provider: Choice = Field(default="", description="Empty: the provider that the document or the server names.")
    budget: Budget = ""


class MergeOptions(Strict):
    """The options of a merge."""

    allow_partial: StrictBool = Field(default=False, description="Mark the gaps where pages failed.")


class Acted(BaseModel):
    """The outcome of a bulk action."""

    matched: int = Field(description="Matching documents, including those of further requests.")
    done: int
    skipped: list[Skipped]
    next_cursor: str | None = Field(default=None, description="More documents match: send this as `cursor`.")


# Before the routes with an id, or `actions` would match as an id.
@router.post("/actions/{verb}")
def act_on_many(caller: ByCaller, verb: Verb, selection: Selection) -> Acted:
    """Act on many documents, each in its own transaction. At most 500 per request."""
    if selection.ids is not None:
        ids, last = list(dict.fromkeys(selection.ids)), None
        matched = len(ids)
    else:
        chosen = selection.filter
        which = Filter(frozenset(chosen.status), chosen.q, chosen.created_from, chosen.created_before)
        matched = documents.count_documents.by(caller, which)
        after = pages.decode(selection.cursor, datetime, str)
        ids, last = documents.next_ids.by(caller, which, after, MOST_AT_ONCE)
    done, skipped = documents.act.by(caller, verb, ids, allow_partial=selection.allow_partial)
    return Acted(matched=matched, done=done, skipped=skipped, next_cursor=pages.encode(*last) if last else None)


@router.post("/{document_id}/cancel")
def cancel(caller: ByCaller, document_id: HexId) -> DocumentView:
    """Cancel a document, and discard results of pages in progress."""
    return documents.cancel.by(caller, document_id)


@router.post("/{document_id}/pause")
def pause(caller: ByCaller, document_id: HexId) -> DocumentView:
    """Let pages in progress finish, and start no others."""
    return documents.pause.by(caller, document_id)


@router.post("/{document_id}/resume", status_code=202, dependencies=spender)
def resume(request: Request, response: Response, caller: ByCaller, document_id: HexId) -> DocumentView:
    """Continue a paused document."""
    return accepted(request, response, documents.resume.by(caller, document_id))


@router.post("/{document_id}/retry", status_code=202, dependencies=spender)
def retry(
    request: Request,
    response: Response,
    caller: ByCaller,
    document_id: HexId,
    options: FreshOptions | None = None,
) -> DocumentView:
    """Convert a document again from the start."""
    return accepted(
        request, response, documents.retry.by(caller, document_id, **(options or FreshOptions()).model_dump())
    )


@router.post("/{document_id}/retry-failed", status_code=202, dependencies=spender)
def retry_failed(
    request: Request,
    response: Response,
    caller: ByCaller,
    document_id: HexId,
    options: RetryOptions | None = None,
) -> DocumentView:
    """Retry the failed pages and untried pages of a partial result; without any, the merge or the whole document."""
    return accepted(
        request, response, documents.retry_failed.by(caller, document_id, **(options or RetryOptions()).model_dump())
    )


@router.post("/{document_id}/escalate", status_code=202, dependencies=spender)
def escalate(
    request: Request,
    response: Response,
    caller: ByCaller,
    document_id: HexId,
    options: EscalateOptions | None = None,
) -> DocumentView:
    """Send doubtful and failed pages to another provider, and keep the better text of each."""
    return accepted(
        request, response, documents.escalate.by(caller, document_id, **(options or EscalateOptions()).model_dump())
    )


@router.post("/{document_id}/remerge", status_code=202)
def remerge(
    request: Request,
    response: Response,
    caller: ByCaller,
    document_id: HexId,
    options: MergeOptions | None = None,
) -> DocumentView:
    """Merge the pages into Markdown again."""
    return accepted(
        request, response, documents.remerge.by(caller, document_id, **(options or MergeOptions()).model_dump())
    )


@router.post("/{document_id}/pages/{page}/retry", status_code=202, dependencies=spender)
def retry_page(
    request: Request,
    response: Response,
    caller: ByCaller,
    document_id: HexId,
    page: PageNumber,
    options: RetryOptions | None = None,
) -> DocumentView:
    """Convert one page again. It keeps its old text until the new one is ready."""
    return accepted(
        request,
        response,
        documents.retry_page.by(caller, document_id, page, **(options or RetryOptions()).model_dump()),
    )


@router.post("/{document_id}/pages/{page}/attempts/{attempt}/promote", status_code=202)
def promote(
    request: Request, response: Response, caller: ByCaller, document_id: HexId, page: PageNumber, attempt: RowId
) -> DocumentView:
    """Use the text of an older attempt for the page."""
    return accepted(request, response, documents.promote.by(caller, document_id, page, attempt))

"""`/api/v1/documents/…`: what one may do with a document, with one of its pages, and with all that match."""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from pipeline.engine.errors import PenstockError
from pipeline.interfaces.api import pages
from pipeline.interfaces.api.dependencies import check_model, may_spend, note_work, spender, writer
from pipeline.interfaces.api.fields import HexId, Line, PageNumber, RowId
from pipeline.interfaces.api.moments import At
from pipeline.interfaces.api.problems import documented
from pipeline.interfaces.api.v1.document_shapes import (
    DocumentShape,
    FreshOptions,
    MergeOptions,
    RetryOptions,
    shape,
)
from pipeline.interfaces.api.v1.documents import Status, accepted
from tasks import documents as flow
from tasks.documents import Document, Filter

router = APIRouter(prefix="/documents", tags=["documents"], dependencies=writer, responses=documented(404, 409))
MOST_AT_ONCE = 500
"""Documents that one request acts on; `next_cursor` leads to the others."""


class Verb(StrEnum):
    """What can be done with many documents at once."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    RETRY_FAILED = "retry-failed"
    REMERGE = "remerge"
    DELETE = "delete"


_ACTS: dict[Verb, Callable[[str], Any]] = {
    Verb.CANCEL: flow.cancel, Verb.PAUSE: flow.pause, Verb.RESUME: flow.resume, Verb.RETRY: flow.retry,
    Verb.RETRY_FAILED: flow.retry_failed, Verb.REMERGE: flow.remerge, Verb.DELETE: flow.delete,
}  # fmt: skip


_PAID = frozenset({Verb.RETRY, Verb.RETRY_FAILED})


def _account(request: Request, verb: Verb | None, document_id: str, options: RetryOptions | None = None) -> None:
    """Pages that are converted again count like those that are submitted. Without a verb: one page."""
    found = flow.status(document_id)
    if options is not None:
        check_model(request, options.provider or found.provider, options.model)
    count = found.pages if verb is Verb.RETRY else found.failed_count if verb is Verb.RETRY_FAILED else 1
    if count:
        request.app.state.quotas.take_pages(request.state.caller.id, count)
    note_work(request, "documents", document_id)


class DocumentFilter(BaseModel):
    """The same as the list's."""

    model_config = ConfigDict(extra="forbid")
    status: list[Status] = Field(default_factory=list, max_length=10)
    q: Line = ""
    created_from: At | None = None
    created_before: At | None = None


class Selection(BaseModel):
    """Which documents: either `ids`, or a `filter` (none: all) with `all_matching`."""

    model_config = ConfigDict(
        extra="forbid",
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
    cursor: Line | None = Field(
        default=None, description="`next_cursor` of the answer before, to go on with the others."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> "Selection":
        if (self.ids is None) is not self.all_matching:
            raise ValueError("give ids, or a filter with all_matching: true")
        return self


class Skipped(BaseModel):
    """A document that stayed as it was, and why."""

    id: str
    reason: str


class Acted(BaseModel):
    """What came of it."""

    matched: int = Field(description="Documents that match, those of further requests included.")
    done: int
    skipped: list[Skipped]
    next_cursor: str | None = Field(default=None, description="There are more: send this as `cursor`.")


# Before those with an id: `actions` must not be taken for one.
@router.post("/actions/{verb}")
def act_on_many(request: Request, verb: Verb, selection: Selection) -> Acted:
    """Do the same with many documents, each in a transaction of its own. At most 500 a request."""
    if verb in _PAID:
        may_spend(request)
    if selection.ids is not None:
        ids, following = list(dict.fromkeys(selection.ids)), None
        matched = len(ids)
    else:
        chosen = selection.filter
        which = Filter(frozenset(chosen.status), chosen.q, chosen.created_from, chosen.created_before)
        matched = flow.count_documents(which)
        ids, following = _some(which, selection.cursor)
    done, skipped = 0, []
    for document_id in ids:
        try:
            if verb in _PAID:
                _account(request, verb, document_id)
            _ACTS[verb](document_id)
            done += 1
        except PenstockError as error:
            skipped.append(Skipped(id=document_id, reason=str(error)))
    return Acted(matched=matched, done=done, skipped=skipped, next_cursor=following)


def _some(which: Filter, cursor: str | None) -> tuple[list[str], str | None]:
    """(ids of the next documents, newest first; where those after them begin)."""
    found = flow.list_documents(which=which, limit=MOST_AT_ONCE + 1, after=pages.decode(cursor, datetime, str))

    def key(document: Document) -> tuple[datetime, str]:
        return document.created_at, document.id

    some = pages.page(found, MOST_AT_ONCE, lambda document: document.id, key)
    return some.items, some.next_cursor


@router.post("/{document_id}/cancel")
def cancel(document_id: HexId) -> DocumentShape:
    """Stop a document for good. Results of pages in progress are discarded."""
    return shape(flow.cancel(document_id))


@router.post("/{document_id}/pause")
def pause(document_id: HexId) -> DocumentShape:
    """Let pages in progress finish, and start no others."""
    return shape(flow.pause(document_id))


@router.post("/{document_id}/resume", status_code=202)
def resume(request: Request, response: Response, document_id: HexId) -> DocumentShape:
    """Continue a paused document."""
    return accepted(request, response, flow.resume(document_id))


@router.post("/{document_id}/retry", status_code=202, dependencies=spender)
def retry(
    request: Request, response: Response, document_id: HexId, options: FreshOptions | None = None
) -> DocumentShape:
    """Convert a document again, from the start."""
    _account(request, Verb.RETRY, document_id, options)
    return accepted(request, response, flow.retry(document_id, **(options or FreshOptions()).model_dump()))


@router.post("/{document_id}/retry-failed", status_code=202, dependencies=spender)
def retry_failed(
    request: Request, response: Response, document_id: HexId, options: RetryOptions | None = None
) -> DocumentShape:
    """Convert the failed pages again."""
    _account(request, Verb.RETRY_FAILED, document_id, options)
    return accepted(request, response, flow.retry_failed(document_id, **(options or RetryOptions()).model_dump()))


@router.post("/{document_id}/remerge", status_code=202)
def remerge(
    request: Request, response: Response, document_id: HexId, options: MergeOptions | None = None
) -> DocumentShape:
    """Merge the pages into Markdown again."""
    return accepted(request, response, flow.remerge(document_id, **(options or MergeOptions()).model_dump()))


@router.post("/{document_id}/pages/{page}/retry", status_code=202, dependencies=spender)
def retry_page(
    request: Request, response: Response, document_id: HexId, page: PageNumber, options: RetryOptions | None = None
) -> DocumentShape:
    """Convert one page again. It keeps its old text until the new one is ready."""
    _account(request, None, document_id, options)
    return accepted(request, response, flow.retry_page(document_id, page, **(options or RetryOptions()).model_dump()))


@router.post("/{document_id}/pages/{page}/attempts/{attempt}/promote", status_code=202)
def promote(
    request: Request, response: Response, document_id: HexId, page: PageNumber, attempt: RowId
) -> DocumentShape:
    """Make the text of an older attempt the page's text."""
    return accepted(request, response, flow.promote(document_id, page, attempt))

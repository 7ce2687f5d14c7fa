"""The same done with many documents, for the API and the console: some a request, each in a transaction of its own.

What may cost money is on the account of whoever asks, as when a file is submitted.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

from fastapi import Request
from pydantic import BaseModel

from pipeline.engine.errors import PenstockError
from pipeline.interfaces.api import pages
from pipeline.interfaces.api.caller import Caller
from pipeline.interfaces.api.dependencies import check_model, may_spend, note_work
from pipeline.interfaces.api.v1.document_shapes import RetryOptions
from tasks import documents as flow
from tasks.documents import Document, Filter

MOST_AT_ONCE = 500
"""Documents that one request acts on; a cursor leads to the others."""


class Verb(StrEnum):
    """What can be done with many documents at once."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    RETRY_FAILED = "retry-failed"
    """The failed pages; all of a document that failed as a whole."""
    REMERGE = "remerge"
    DELETE = "delete"


PAID = frozenset({Verb.RETRY, Verb.RETRY_FAILED})


class Skipped(BaseModel):
    """A document that stayed as it was, and why."""

    id: str
    reason: str


def whose(request: Request) -> str:
    """The name of the key that a request came with; empty for somebody on this machine."""
    caller: Caller = request.state.caller
    return caller.name if caller.has_key else ""


def account(request: Request, verb: Verb | None, document_id: str, options: RetryOptions | None = None) -> None:
    """Pages that are converted again count like those that are submitted. Without a verb: one page."""
    found = flow.status(document_id)
    if options is not None:
        check_model(request, options.provider or found.provider, options.model)
    count = found.pages if verb is Verb.RETRY else found.failed_count if verb is Verb.RETRY_FAILED else 1
    if count:
        request.app.state.quotas.take_pages(request.state.caller.id, count)
    note_work(request, "documents", document_id)


def act_on_all(
    request: Request, verb: Verb, ids: Iterable[str], *, allow_partial: bool = False
) -> tuple[int, list[Skipped]]:
    """Do it with each of these; with how many it was done, and why not with the others. Blocks.

    Raises `Refused` (429) for what costs money, if the caller has spent enough.
    """
    if verb in PAID:
        may_spend(request)
    acts: dict[Verb, Callable[[str], Any]] = {
        Verb.CANCEL: flow.cancel, Verb.PAUSE: lambda one: flow.pause(one, by=whose(request)), Verb.RESUME: flow.resume,
        Verb.RETRY: flow.retry, Verb.RETRY_FAILED: _retry_failed,
        Verb.REMERGE: lambda one: flow.remerge(one, allow_partial=allow_partial), Verb.DELETE: flow.delete,
    }  # fmt: skip
    done, skipped = 0, []
    for document_id in ids:
        try:
            if verb in PAID:
                account(request, verb, document_id)
            acts[verb](document_id)
            done += 1
        except PenstockError as error:
            skipped.append(Skipped(id=document_id, reason=str(error)))
    return done, skipped


def _retry_failed(document_id: str) -> None:
    found = flow.status(document_id)
    if found.status is flow.DocumentStatus.FAILED and not found.failed_count:
        flow.retry(document_id)
    else:
        flow.retry_failed(document_id)


def portion(which: Filter, cursor: str | None, most: int = MOST_AT_ONCE) -> tuple[list[str], str | None]:
    """(ids of the next documents, newest first; where those after them begin)."""
    found = flow.list_documents(which=which, limit=most + 1, after=pages.decode(cursor, datetime, str))

    def key(document: Document) -> tuple[datetime, str]:
        return document.created_at, document.id

    some = pages.page(found, most, lambda document: document.id, key)
    return some.items, some.next_cursor

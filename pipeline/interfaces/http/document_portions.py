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
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import check_model, may_spend
from pipeline.interfaces.http.identity import Caller
from pipeline.interfaces.rest.document_shapes import FreshOptions, RetryOptions
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
    """The failed pages; else the merge, or all of a document that failed before it had pages."""
    REMERGE = "remerge"
    DELETE = "delete"


PAID = frozenset({Verb.RESUME, Verb.RETRY, Verb.RETRY_FAILED})


class Skipped(BaseModel):
    """A document that stayed as it was, and why."""

    id: str
    reason: str


def whose(request: Request) -> str:
    """The name of the key that a request came with; empty for somebody on this machine."""
    caller: Caller = request.state.caller
    return caller.name if caller.has_key else ""


def convert_again(
    request: Request, document_id: str, options: RetryOptions, act: Callable[..., Document], *args: Any
) -> Document:
    """Call `act` (`retry`, `retry_failed` or `retry_page`) and charge the caller for the pages to convert again, like
    submitted ones. A refused command costs nothing. Raises `Refused` (429).
    """
    quotas, caller, taken = request.app.state.quotas, request.state.caller.id, 0

    def charge(_session: Any, pages: int) -> None:
        nonlocal taken
        if pages and not taken:  # a transaction may be repeated
            quotas.take_pages(caller, pages)
            taken = pages

    if options.model:
        check_model(request, options.provider or flow.status(document_id).provider, options.model)
    try:
        return act(document_id, *args, **options.model_dump(), charge=charge)
    except Exception:
        if taken:
            quotas.give_back_pages(caller, taken)
        raise


def act_on_all(
    request: Request, verb: Verb, ids: Iterable[str], *, allow_partial: bool = False
) -> tuple[int, list[Skipped]]:
    """Do it with each of these; with how many it was done, and why not with the others. Blocks.

    Raises `Refused` (429) for what costs money, if the caller has spent enough.
    """
    if verb in PAID:
        may_spend(request)
    acts: dict[Verb, Callable[[str], Any]] = {
        Verb.CANCEL: flow.cancel,
        Verb.PAUSE: lambda one: flow.pause(one, by=whose(request)),
        Verb.RESUME: flow.resume,
        Verb.RETRY: lambda one: convert_again(request, one, FreshOptions(), flow.retry),
        Verb.RETRY_FAILED: lambda one: convert_again(request, one, RetryOptions(), flow.retry_failed),
        Verb.REMERGE: lambda one: flow.remerge(one, allow_partial=allow_partial),
        Verb.DELETE: flow.delete,
    }
    done, skipped = 0, []
    for document_id in ids:
        try:
            acts[verb](document_id)
            done += 1
        except PenstockError as error:
            skipped.append(Skipped(id=document_id, reason=str(error)))
    return done, skipped


def portion(which: Filter, cursor: str | None, most: int = MOST_AT_ONCE) -> tuple[list[str], str | None]:
    """(ids of the next documents, newest first; where those after them begin)."""
    found = flow.list_documents(which=which, limit=most + 1, after=pages.decode(cursor, datetime, str))

    def key(document: Document) -> tuple[datetime, str]:
        return document.created_at, document.id

    some = pages.page(found, most, lambda document: document.id, key)
    return some.items, some.next_cursor

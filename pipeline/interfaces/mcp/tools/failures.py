"""Tools that list failed work, and retry it."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints, model_validator

from pipeline.engine import backlog
from pipeline.flows import flows
from pipeline.flows.documents.states import PageStatus
from pipeline.interfaces.http.fields import Choice
from pipeline.interfaces.mcp.tool import Arguments, Call, Toolbox
from pipeline.operations import documents, knowledge, screenshots
from pipeline.operations.refusal import Refused

BOX = Toolbox()
_PAGES_OF_EACH = 20
Id = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9:_-]+$")]


class Kind(StrEnum):
    """The kind of failed work."""

    DOCUMENT = "document"
    KNOWLEDGE = "knowledge_item"
    SCREENSHOTS = "screenshots"


class Failure(BaseModel):
    """Work that failed at its last attempt."""

    kind: Kind
    id: str = Field(description="The id to retry.")
    name: str
    error: str
    at: datetime
    pages: list[int] = Field(default_factory=list, description="The first failed pages of a document.")


class Failures(BaseModel):
    """Failures, the latest first."""

    failures: list[Failure]
    next: str = Field(description="The next step.")


class Which(Arguments):
    """The failures to list."""

    kind: Kind | None = Field(default=None, description="Null: all kinds.")
    limit: int = Field(default=20, ge=1, le=100, description="At most this many of each kind.")


@BOX.tool("List failures")
def list_failures(call: Call, arguments: Which) -> Failures:
    """List documents, knowledge items and analyses of screenshots that failed at their last attempt, with reasons."""
    failures = [
        _failure(failure)
        for flow in flows()
        if flow.name in {"documents", "knowledge"}
        for failure in flow.failures(call.caller.context, arguments.limit)
        if arguments.kind in {None, failure.kind}
    ]
    if arguments.kind in {None, Kind.SCREENSHOTS}:
        failures += [
            Failure(
                kind=Kind.SCREENSHOTS,
                id=f"{letter.kind}:{letter.id}",
                name=f"{letter.kind} {letter.id}",
                error=letter.reason,
                at=letter.at,
            )
            for letter in screenshots.dead_letters(arguments.limit)  # merges and vectors, too
        ]
    failures.sort(key=lambda failure: failure.at, reverse=True)
    step = "Use retry with kind and id." if call.may_write else "A person retries in the console."
    return Failures(failures=failures, next=step if failures else "Nothing failed.")


def _failure(failure: backlog.Failure) -> Failure:
    pages = []
    if failure.kind == Kind.DOCUMENT:
        pages = [page.page for page in documents.pages(failure.id, status=PageStatus.FAILED, limit=_PAGES_OF_EACH)]
    kind = Kind(failure.kind)
    return Failure(kind=kind, id=failure.id, name=failure.name, error=failure.words, at=failure.at, pages=pages)


class Retry(Arguments):
    """The failed work to retry, and how."""

    kind: Kind = Kind.DOCUMENT
    id: Id = Field(description="The id that list_failures gives.")
    page: int | None = Field(default=None, ge=1, le=1_000_000, description="Only this page of a document.")
    all_pages: bool = Field(default=False, description="The whole document from the start, completed pages included.")
    provider: Choice = Field(default="", description="Another provider for a document; empty: the same.")
    model: Choice = ""

    @model_validator(mode="after")
    def _fits(self) -> "Retry":
        if self.kind is not Kind.DOCUMENT and (self.page or self.all_pages or self.provider or self.model):
            raise ValueError("page, all_pages, provider and model are for documents only")
        if self.page and self.all_pages:
            raise ValueError("give either a page or all_pages")
        return self


class Retried(BaseModel):
    """The work that runs again."""

    kind: Kind
    id: str
    status: str
    next: str = Field(description="The next step.")


@BOX.tool("Retry failed work", writes=True, spends=True, idempotent=False)
def retry(call: Call, arguments: Retry) -> Retried:
    """Retry failed work: the failed pages of a document, one page, or all pages; a knowledge item; or an analysis of
    screenshots. The old text of a page stays until the new one is ready."""
    step = "Call get_status with wait_s to wait for it."
    match arguments.kind:
        case Kind.DOCUMENT:
            document = _retry_document(call, arguments)
            if document.settled:
                step = "None of its pages had failed. Name a page, or all_pages, to convert it again all the same."
            return Retried(kind=arguments.kind, id=document.id, status=document.status.name, next=step)
        case Kind.KNOWLEDGE:
            item = knowledge.reprocess.by(call.caller, arguments.id)
            return Retried(kind=arguments.kind, id=item.id, status=item.status, next=step)
        case Kind.SCREENSHOTS:
            _replay(call, arguments.id)
            return Retried(kind=arguments.kind, id=arguments.id, status="pending", next="See list_failures in a while.")


def _retry_document(call: Call, arguments: Retry) -> documents.Document:
    caller, chosen = call.caller, {"provider": arguments.provider, "model": arguments.model}
    if arguments.page:
        return documents.retry_page.by(caller, arguments.id, arguments.page, **chosen)
    if arguments.all_pages:
        return documents.retry.by(caller, arguments.id, provider=arguments.provider, model=arguments.model)
    return documents.retry_failed.by(caller, arguments.id, **chosen)


def _replay(call: Call, letter: str) -> None:
    if not screenshots.replay_letters.by(call.caller, [letter]).done:
        raise Refused(f"no failure has the id {letter}: use an id of list_failures", code="not_found")

"""What failed for good, and trying it again."""

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
    """What failed."""

    DOCUMENT = "document"
    KNOWLEDGE = "knowledge_item"
    SCREENSHOTS = "screenshots"


class Failure(BaseModel):
    """Something that was given up."""

    kind: Kind
    id: str = Field(description="Names it when it is tried again.")
    name: str
    error: str
    at: datetime
    pages: list[int] = Field(default_factory=list, description="Of a document: the first pages that failed.")


class Failures(BaseModel):
    """What failed, the latest first."""

    failures: list[Failure]
    next: str = Field(description="What to do now.")


class Which(Arguments):
    """Failures of what."""

    kind: Kind | None = Field(default=None, description="Null: of everything.")
    limit: int = Field(default=20, ge=1, le=100, description="At most this many of each kind.")


@BOX.tool("List what failed")
def list_failures(call: Call, asked: Which) -> Failures:
    """List documents, knowledge items and analyses of screenshots that failed for good, with the reasons."""
    found = [
        _failure(one)
        for flow in flows()
        if flow.name in {"documents", "knowledge"}
        for one in flow.failures(call.caller.context, asked.limit)
        if asked.kind in {None, one.kind}
    ]
    if asked.kind in {None, Kind.SCREENSHOTS}:
        found += [
            Failure(
                kind=Kind.SCREENSHOTS,
                id=f"{one.kind}:{one.id}",
                name=f"{one.kind} {one.id}",
                error=one.reason,
                at=one.at,
            )
            for one in screenshots.dead_letters(asked.limit)  # merges and vectors, too
        ]
    found.sort(key=lambda failure: failure.at, reverse=True)
    now = "Use retry with kind and id." if call.may_write else "Somebody tries again in the console."
    return Failures(failures=found, next=now if found else "Nothing failed.")


def _failure(one: backlog.Failure) -> Failure:
    pages = []
    if one.kind == Kind.DOCUMENT:
        pages = [page.page for page in documents.pages(one.id, status=PageStatus.FAILED, limit=_PAGES_OF_EACH)]
    return Failure(kind=Kind(one.kind), id=one.id, name=one.name, error=one.words, at=one.at, pages=pages)


class Again(Arguments):
    """What to try again, and how."""

    kind: Kind = Kind.DOCUMENT
    id: Id = Field(description="As list_failures says.")
    page: int | None = Field(default=None, ge=1, le=1_000_000, description="Only this page of a document.")
    all_pages: bool = Field(default=False, description="The whole document from the start, also what did not fail.")
    provider: Choice = Field(default="", description="Another provider for a document; empty: the same.")
    model: Choice = ""

    @model_validator(mode="after")
    def _fits(self) -> "Again":
        if self.kind is not Kind.DOCUMENT and (self.page or self.all_pages or self.provider or self.model):
            raise ValueError("page, all_pages, provider and model are for documents only")
        if self.page and self.all_pages:
            raise ValueError("give either a page or all_pages")
        return self


class Retried(BaseModel):
    """What is under way again."""

    kind: Kind
    id: str
    status: str
    next: str = Field(description="What to do now.")


@BOX.tool("Try again what failed", writes=True, spends=True, idempotent=False)
def retry(call: Call, asked: Again) -> Retried:
    """Try again what failed: the failed pages of a document, one page, all of it; a knowledge item; or an analysis of
    screenshots. The old text of a page stays until the new one is ready."""
    now = "Call get_status with wait_s to wait for it."
    match asked.kind:
        case Kind.DOCUMENT:
            again = _retry_document(call, asked)
            if again.settled:
                now = "None of its pages had failed. Name a page, or all_pages, to convert it again all the same."
            return Retried(kind=asked.kind, id=again.id, status=again.status.name, next=now)
        case Kind.KNOWLEDGE:
            item = knowledge.reprocess.by(call.caller, asked.id)
            return Retried(kind=asked.kind, id=item.id, status=item.status, next=now)
        case Kind.SCREENSHOTS:
            _replay(call, asked.id)
            return Retried(kind=asked.kind, id=asked.id, status="pending", next="See list_failures in a while.")


def _retry_document(call: Call, asked: Again) -> documents.Document:
    caller, chosen = call.caller, {"provider": asked.provider, "model": asked.model}
    if asked.page:
        return documents.retry_page.by(caller, asked.id, asked.page, **chosen)
    if asked.all_pages:
        return documents.retry.by(caller, asked.id, provider=asked.provider, model=asked.model)
    return documents.retry_failed.by(caller, asked.id, **chosen)


def _replay(call: Call, letter: str) -> None:
    if not screenshots.replay_letters.by(call.caller, [letter]).done:
        raise Refused(f"nothing that failed has the id {letter}: use one of list_failures", code="not_found")

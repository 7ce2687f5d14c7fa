"""Documents, pages and attempts as the API shows them: what the views have, without paths and workers of the server."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, StrictBool, StringConstraints

from pipeline.flows.documents.queries import DocumentView
from pipeline.flows.documents.reasons import Kind, Reason
from pipeline.interfaces.http.fields import Strict, Word

if TYPE_CHECKING:
    from tasks.documents import AttemptView, Document, PageView

EXAMPLE: dict[str, JsonValue] = {
    "id": "0123456789abcdef",
    "filename": "report.pdf",
    "type": "pdf",
    "status": "COMPLETED",
    "progress": 100,
    "settled": True,
    "has_result": True,
    "outdated": False,
    "pages": 12,
    "completed_count": 12,
    "failed_count": 0,
    "doubtful_count": 0,
    "page_range": "",
    "provider": "local",
    "model": "",
    "model_name": "",
    "error": None,
    "allow_partial": False,
    "size_bytes": 123456,
    "created_at": "2026-11-22T10:00:00Z",
    "updated_at": "2026-11-22T10:00:09Z",
    "started_at": "2026-11-22T10:00:01Z",
    "finished_at": "2026-11-22T10:00:09Z",
    "cost": 0.0,
    "reason": None,
}
Choice = Literal[""] | Word
PageRange = Annotated[str, StringConstraints(max_length=2000, pattern=r"^[0-9,\- ]*$")]


class ReasonShape(BaseModel):
    """Why a document is as it is."""

    model_config = ConfigDict(from_attributes=True)
    kind: Kind = Field(
        description="What it waits for: operator, spend, breaker, limits, retry, capacity, workers; or how it is: "
        "working, paused, failed, doubt."
    )
    words: str
    until: datetime | None = Field(description="When that ends by itself; with `paused`, since when. Null: not known.")


class DocumentShape(BaseModel):
    """A document."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    id: str
    filename: str
    type: str = Field(description="By its content: pdf, png, jpeg, webp or tiff.")
    status: str = Field(
        description="Such as PENDING, PROCESSING, COMPLETED, PARTIAL_FAILED, FAILED, CANCELLED, PAUSED."
    )
    progress: int = Field(ge=0, le=100, description="Percent.")
    settled: bool = Field(description="At rest or paused: waiting for it brings nothing.")
    has_result: bool = Field(description="There is Markdown to fetch.")
    outdated: bool = Field(description="The Markdown is from before the last retry, until there is a new one.")
    pages: int = Field(description="Pages to convert; 0 until the document is split.")
    completed_count: int
    failed_count: int
    doubtful_count: int = Field(description="Pages of its Markdown whose recognition is doubtful.")
    page_range: str
    provider: str
    model: str
    model_name: str
    error: str | None
    allow_partial: bool
    size_bytes: int
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cost: float = Field(description="Of all calls for it, over its whole life, by the providers' price lists.")
    reason: ReasonShape | None = Field(default=None, description="Why it is so, in lists and where one is shown.")


class PageShape(BaseModel):
    """A page of a document, without its text."""

    page: int = Field(description="Its position in the result, from 1.")
    page_source: int = Field(description="Its position in the file, from 1.")
    status: str = Field(description="PENDING, PROCESSING, COMPLETED, FAILED or RETRYING.")
    provider: str
    model: str
    characters: int
    confidence: float | None = Field(description="How sure text recognition was, 0 to 1; null if nobody said.")
    uncertain_share: float | None = Field(
        description="The share of its recognised text that is words recognition was unsure of; null if nobody said."
    )
    doubtful: bool = Field(description="Its text should be compared with the page.")
    error: str | None
    attempts: int
    retry_count: int
    next_run_at: datetime | None
    updated_at: datetime


class PageWithText(PageShape):
    """A page with its Markdown."""

    markdown: str


class AttemptShape(BaseModel):
    """One attempt of a page."""

    id: int
    page: int
    page_source: int
    provider: str
    model: str
    cached: bool = Field(description="Copied from an earlier attempt, without a call.")
    status: str = Field(description="`completed`, or the kind of the error.")
    effective: bool = Field(description="Its claim still held when it ended.")
    error: str | None
    text: str
    input_tokens: int
    output_tokens: int
    latency_ms: int
    cost: float = Field(description="By the provider's price list.")
    created_at: datetime


class FoundPageShape(BaseModel):
    """A page with the words."""

    model_config = ConfigDict(from_attributes=True)
    document_id: str
    filename: str
    page: int = Field(description="Its position in the result, from 1.")
    page_source: int = Field(description="Its position in the file, from 1.")
    passage: str = Field(description="The text around one of the words.")


class FoundPagesShape(BaseModel):
    """Pages, best first."""

    model_config = ConfigDict(from_attributes=True)
    hits: list[FoundPageShape]
    any_word: bool = Field(description="No page has all the words: these have some of them.")
    unindexed: int = Field(description="Documents whose text is still to be indexed.")


PAGES = AliasChoices("pages", "page_range")
"""The current and the former name of the pages to convert."""


class SubmitOptions(Strict):
    """How to convert a file."""

    page_range: PageRange = Field(
        default="", description="Such as `1-5,7`; empty for all.", examples=["1-5,7"], validation_alias=PAGES
    )
    provider: Choice = Field(default="", description="A configured provider; empty for the server's choice.")
    model: Choice = ""
    allow_partial: bool = Field(default=False, description="Merge what there is when pages fail for good.")
    use_cache: bool = True
    pictures: bool = Field(default=False, description="Keep the pictures on its pages; local conversion only.")
    fresh: bool = Field(default=False, description="Make a new document even if the same file was submitted before.")


class RetryOptions(Strict):
    """Another provider or model for what is converted again; empty: no change."""

    provider: Choice = ""
    model: Choice = ""


class FreshOptions(RetryOptions):
    """The same for a whole document."""

    fresh: StrictBool = Field(default=False, description="Ask the provider even for pages in the cache.")


class MergeOptions(Strict):
    """How to merge again."""

    allow_partial: StrictBool = Field(default=False, description="Mark the gaps where pages failed.")


def shape(document: "Document", reason: Reason | None = None) -> DocumentShape:
    """A document as the API shows it."""
    names = DocumentShape.model_fields.keys() & DocumentView.__dataclass_fields__.keys()
    shown = {name: getattr(document, name) for name in names}
    shown |= {"status": document.status.name, "settled": document.settled, "has_result": bool(document.merged_path)}
    shown |= {"reason": ReasonShape.model_validate(reason)} if reason else {}
    return DocumentShape(**shown)


def _page_fields(page: "PageView") -> dict[str, Any]:
    shown = {name: getattr(page, name) for name in PageShape.model_fields if name not in {"status", "characters"}}
    return shown | {"status": page.status.name, "characters": len(page.content)}


def page_shape(page: "PageView") -> PageShape:
    """A page without its text."""
    return PageShape(**_page_fields(page))


def page_with_text(page: "PageView") -> PageWithText:
    """A page with its text."""
    return PageWithText(**_page_fields(page), markdown=page.content)


def attempt_shape(attempt: "AttemptView") -> AttemptShape:
    """An attempt as the API shows it."""
    return AttemptShape(**{name: getattr(attempt, name) for name in AttemptShape.model_fields})

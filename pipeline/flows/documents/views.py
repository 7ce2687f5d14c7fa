"""Views of documents: frozen copies of rows, which are also the answers of HTTP interfaces."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, computed_field

from pipeline.engine.errors import UserError
from pipeline.engine.metrics import Throughput
from pipeline.engine.views import PASSING
from pipeline.engine.wire import HIDDEN, NAMED, VIEW, example
from pipeline.flows.documents.states import AT_REST, DocumentStatus, PageStatus


class Kind(StrEnum):
    """What kind of reason it is."""

    WORKING = "working"
    """It waits for nothing."""
    OPERATOR = "operator"
    """An operator closed the queue."""
    SPEND = "spend"
    BREAKER = "breaker"
    LIMITS = "limits"
    RETRY = "retry"
    """Its pages failed for now, and are tried again."""
    CAPACITY = "capacity"
    """Workers are busy with something else."""
    WORKERS = "workers"
    """There are none."""
    PAUSED = "paused"
    FAILED = "failed"
    DOUBT = "doubt"
    """It is done, but recognition was not sure of some pages."""


@dataclass(frozen=True)
class Reason:
    """The reason for a document's state."""

    __pydantic_config__ = VIEW
    kind: Kind
    """Waiting for: operator, spend, breaker, limits, retry, capacity, workers; or how it is: working, paused,
    failed, doubt."""
    words: str
    until: datetime | None = None
    """When that ends by itself; with `paused`, since when. Null: not known."""


EXAMPLE: dict[str, Any] = {
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


@dataclass(frozen=True)
class DocumentView:
    """A document."""

    __pydantic_config__ = example(**EXAMPLE)
    id: str
    filename: str
    source_path: Annotated[str, HIDDEN]
    """Where the file was; empty for uploads."""
    type: str
    """By its content: pdf, png, jpeg, webp or tiff."""
    status: Annotated[DocumentStatus, NAMED]
    """Such as PENDING, PROCESSING, COMPLETED, PARTIAL_FAILED, FAILED, CANCELLED, PAUSED."""
    progress: Annotated[int, Field(ge=0, le=100)]
    """Percent."""
    pages: int
    """Pages to convert; 0 until the document is split."""
    completed_count: int
    failed_count: int
    page_range: str
    provider: str
    model: str
    model_name: str
    worker_id: Annotated[str | None, HIDDEN]
    merged_path: Annotated[str | None, HIDDEN]
    error: str | None
    allow_partial: bool
    size_bytes: int
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cost: float = 0.0
    """Of all calls for it, over its whole life, by the providers' price lists."""
    doubtful_count: int = 0
    """Pages of its Markdown whose recognition is doubtful."""
    paused_by: Annotated[str, HIDDEN] = ""
    """The name of the key that paused it last; empty: a user of this machine."""
    paused_at: Annotated[datetime | None, HIDDEN] = None
    outdated: bool = False
    """The Markdown is from before the last retry, until there is a new one."""
    reason: Reason | None = field(default=None, metadata={PASSING: True})
    """Why it is so, in lists and where one is shown."""

    @property
    def at_rest(self) -> bool:
        """Only a user's command moves it on."""
        return self.status in AT_REST

    @property
    def result_path(self) -> Path:
        """The merged Markdown. Raises `UserError` for a document without a result."""
        path = Path(self.merged_path) if self.merged_path else None
        if path is None or not path.is_file():
            raise UserError(f"document {self.id} has no result: it is {self.status.name}", code="no_result")
        return path

    @computed_field  # type: ignore[prop-decorator]
    @property
    def settled(self) -> bool:
        """At rest or paused: waiting for it brings nothing."""
        return self.at_rest or self.status is DocumentStatus.PAUSED

    @computed_field  # type: ignore[prop-decorator]
    @property
    def has_result(self) -> bool:
        """There is Markdown to fetch."""
        return bool(self.merged_path)


@dataclass(frozen=True)
class PageView:
    """A page of a document, without its text."""

    __pydantic_config__ = VIEW
    page: int
    """Its position in the result, from 1."""
    page_source: int
    """Its position in the file, from 1."""
    status: Annotated[PageStatus, NAMED]
    """PENDING, PROCESSING, COMPLETED, FAILED or RETRYING."""
    provider: str
    model: str
    content: Annotated[str, HIDDEN]
    error: str | None
    attempts: int
    retry_count: int
    worker_id: Annotated[str | None, HIDDEN]
    next_run_at: datetime | None
    updated_at: datetime
    confidence: float | None = None
    """Confidence of text recognition, 0 to 1; null: not reported."""
    uncertain_share: float | None = None
    """The share of uncertain words in its recognised text, by characters; null: not reported."""
    doubtful: bool = False
    """Its text should be compared with the page."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def characters(self) -> int:
        """The length of its Markdown."""
        return len(self.content)


@dataclass(frozen=True)
class PageWithText(PageView):
    """A page with its Markdown."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def markdown(self) -> str:
        """Its text."""
        return self.content


@dataclass(frozen=True)
class AttemptView:
    """One attempt of a page."""

    __pydantic_config__ = VIEW
    id: int
    page: int
    page_source: int
    provider: str
    model: str
    prompt_hash: Annotated[str, HIDDEN]
    cached: bool
    """Copied from an earlier attempt, without a call."""
    status: str
    """`completed`, or the kind of the error."""
    effective: bool
    """Its claim still held when it ended."""
    error: str | None
    text: str
    input_tokens: int
    output_tokens: int
    latency_ms: int
    worker_id: Annotated[str, HIDDEN]
    created_at: datetime
    cost: float = 0.0
    """By the provider's price list."""


@dataclass(frozen=True)
class CostView:
    """What a document's attempts with one model of one provider sum up to. `cached` ones cost nothing."""

    provider: str
    model: str
    attempts: int
    cached: int
    input_tokens: int
    output_tokens: int
    cost: float


@dataclass(frozen=True)
class Hit:
    """A page with the words."""

    __pydantic_config__ = VIEW
    document_id: str
    filename: str
    source_path: Annotated[str, HIDDEN]
    page: int
    """Its position in the result, from 1."""
    page_source: int
    """Its position in the file, from 1."""
    passage: str
    """The text around the words, on one line, without the markup of Markdown and HTML."""
    spots: Annotated[list[tuple[int, int]], HIDDEN]
    """Where the words stand in it: from, to. Empty if a page is found by its file's name."""


@dataclass(frozen=True)
class Hits:
    """Pages, best first."""

    __pydantic_config__ = VIEW
    hits: list[Hit]
    any_word: bool
    """No page has all the words: these have some of them."""
    unindexed: int
    """Documents whose text is still to be indexed."""


@dataclass(frozen=True)
class Load:
    """Documents under way, and how many of their pages are still to be converted, as far as they are split."""

    documents: int
    pages: int


@dataclass(frozen=True)
class Figures:
    """The flow's part of `penstock status`. Rule: docs/sources/documents.md#monitoring."""

    documents: dict[str, int]
    pages: dict[str, int]
    last_hour: Throughput

"""Views of documents: frozen copies of rows, which HTTP interfaces answer with."""

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
from pipeline.flows.documents.states import AT_REST, DocumentStatus, EscalationState, PageStatus
from pipeline.reading.files.filetype import TEXT_TYPES


class Kind(StrEnum):
    """The kind of a reason."""

    WORKING = "working"
    """Workers are at it."""
    OPERATOR = "operator"
    """An operator closed the queue."""
    SPEND = "spend"
    BREAKER = "breaker"
    LIMITS = "limits"
    RETRY = "retry"
    """Attempts failed, and retries are due later."""
    CAPACITY = "capacity"
    """All workers are busy with other work."""
    WORKERS = "workers"
    """No worker can take the work."""
    PAUSED = "paused"
    FAILED = "failed"
    DOUBT = "doubt"
    """The document is done, but the text of some pages is doubtful."""


@dataclass(frozen=True)
class Reason:
    """The reason for a document's state."""

    __pydantic_config__ = VIEW
    kind: Kind
    """The document waits for: operator, spend, breaker, limits, retry, capacity, workers; or it is: working, paused,
    failed, doubt."""
    words: str
    until: datetime | None = None
    """The time when the wait ends; with `paused`, the time of the pause. Null: unknown."""


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
    "escalate": "",
    "budget": "",
    "escalated_pages": 0,
    "escalated_cost": 0.0,
    "unpaid_pages": 0,
    "reason": None,
}


@dataclass(frozen=True)
class DocumentView:
    """A document."""

    __pydantic_config__ = example(**EXAMPLE)
    id: str
    filename: str
    source_path: Annotated[str, HIDDEN]
    """The path of the original file; empty for uploads."""
    type: str
    """The type of the content, such as pdf, png, docx, xlsx, epub, html or txt."""
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
    """The cost of all calls for this document, over its whole life, by the providers' price lists."""
    doubtful_count: int = 0
    """Pages of the Markdown with doubtful text."""
    escalate: str = ""
    """The provider to which doubtful and failed pages go; empty: none."""
    budget: str = ""
    """The budget of the last request to escalate: money, such as `2.00`, or pages, such as `20p`; empty: no limit."""
    escalated_pages: int = 0
    """Pages that went to that provider."""
    escalated_cost: float = 0.0
    """The cost of their calls."""
    unpaid_pages: int = 0
    """Pages that stayed as they were because the budget was spent."""
    paused_by: Annotated[str, HIDDEN] = ""
    """The name of the key that paused it last; empty: a user of this machine."""
    paused_at: Annotated[datetime | None, HIDDEN] = None
    outdated: bool = False
    """The Markdown precedes the last retry; a new one will replace it."""
    reason: Reason | None = field(default=None, metadata={PASSING: True})
    """The reason for the state, in lists and where one document is shown."""

    @property
    def at_rest(self) -> bool:
        """Whether only a user's command can change the state."""
        return self.status in AT_REST

    @property
    def result_path(self) -> Path:
        """Return the path of the merged Markdown. Raises `UserError` for a document without a result."""
        path = Path(self.merged_path) if self.merged_path else None
        if path is None or not path.is_file():
            raise UserError(f"document {self.id} has no result: it is {self.status.name}", code="no_result")
        return path

    @computed_field  # type: ignore[prop-decorator]
    @property
    def settled(self) -> bool:
        """The document is at rest or paused, so it is not worth waiting for."""
        return self.at_rest or self.status is DocumentStatus.PAUSED

    @computed_field  # type: ignore[prop-decorator]
    @property
    def has_result(self) -> bool:
        """The document has Markdown to fetch."""
        return bool(self.merged_path)

    @property
    def holds_text(self) -> bool:
        """The file holds its text, like an office file: its pages have no pictures, and this machine reads them."""
        return self.type in TEXT_TYPES


@dataclass(frozen=True)
class EscalationView:
    """The escalation of a page to another provider."""

    __pydantic_config__ = VIEW
    provider: str
    """The other provider."""
    state: EscalationState
    """`waiting` for room in the budget, `open`, `replaced` (its text is the page's), `kept` (its text was worse),
    `failed` (no usable answer) or `unpaid` (the budget was spent)."""
    reason: str
    """Why the earlier text was doubtful, or the error of the page that had failed."""
    outcome: str
    """Which text was kept and why; empty until it has ended."""
    former_provider: str
    """The provider of the earlier text."""
    cost: float
    ended_at: datetime | None


@dataclass(frozen=True)
class PageView:
    """A page of a document, without its text."""

    __pydantic_config__ = VIEW
    page: int
    """Position in the result, from 1."""
    page_source: int
    """Position in the file, from 1."""
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
    """Share of uncertain words in the recognised text, by characters; null: not reported."""
    doubtful: bool = False
    """A person should compare the text with the page."""
    fallback: str | None = None
    """Why the text is from local conversion: no reply of the provider was good. Null: it is not."""
    escalation: EscalationView | None = None
    """Whether the page went to another provider, why, and what came of it."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def characters(self) -> int:
        """Length of the Markdown."""
        return len(self.content)


@dataclass(frozen=True)
class PageWithText(PageView):
    """A page with its Markdown."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def markdown(self) -> str:
        """The page's Markdown."""
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
    """The claim still held when the attempt ended."""
    error: str | None
    text: str
    input_tokens: int
    output_tokens: int
    latency_ms: int
    worker_id: Annotated[str, HIDDEN]
    created_at: datetime
    cost: float = 0.0
    """The cost by the provider's price list."""


@dataclass(frozen=True)
class CostView:
    """The sums of a document's attempts with one model of one provider. `cached`: attempts without a call."""

    provider: str
    model: str
    attempts: int
    cached: int
    input_tokens: int
    output_tokens: int
    cost: float


@dataclass(frozen=True)
class Hit:
    """A page that a search matched."""

    __pydantic_config__ = VIEW
    document_id: str
    filename: str
    source_path: Annotated[str, HIDDEN]
    page: int
    """Position in the result, from 1."""
    page_source: int
    """Position in the file, from 1."""
    passage: str
    """The text around the words, on one line, without the markup of Markdown and HTML."""
    spots: Annotated[list[tuple[int, int]], HIDDEN]
    """The words' places in it: from, to. Empty if the file's name matched."""


@dataclass(frozen=True)
class Hits:
    """Matching pages, best first."""

    __pydantic_config__ = VIEW
    hits: list[Hit]
    any_word: bool
    """No page contains all words: these contain some of them."""
    unindexed: int
    """Documents whose text is not indexed yet."""


@dataclass(frozen=True)
class Load:
    """Open documents, and their unconverted pages as far as the documents are split."""

    documents: int
    pages: int


@dataclass(frozen=True)
class Figures:
    """The flow's part of `penstock status`. Rule: docs/sources/documents.md#monitoring."""

    documents: dict[str, int]
    pages: dict[str, int]
    last_hour: Throughput

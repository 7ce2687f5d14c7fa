"""What callers get to see: plain typed objects, detached from the database."""

from dataclasses import dataclass
from datetime import datetime

from pipeline.engine.metrics import Throughput
from pipeline.flows.documents.states import AT_REST, DocumentStatus, PageStatus


@dataclass(frozen=True)
class DocumentView:
    """A document. `progress` is percent; `pages` is 0 until it was split."""

    id: str
    filename: str
    type: str
    status: DocumentStatus
    progress: int
    pages: int
    completed_count: int
    failed_count: int
    page_range: str
    provider: str
    model: str
    model_name: str
    worker_id: str | None
    merged_path: str | None
    error: str | None
    allow_partial: bool
    size_bytes: int
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def at_rest(self) -> bool:
        """Nothing more happens by itself."""
        return self.status in AT_REST


@dataclass(frozen=True)
class PageView:
    """A page. `page` is its place in the result, `page_source` in the file; both count from 1."""

    page: int
    page_source: int
    status: PageStatus
    provider: str
    model: str
    content: str
    error: str | None
    attempts: int
    retry_count: int
    worker_id: str | None
    next_run_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True)
class AttemptView:
    """One attempt of a page. `effective`: its claim still held when it ended."""

    id: int
    page: int
    page_source: int
    provider: str
    model: str
    prompt_hash: str
    cached: bool
    status: str
    effective: bool
    error: str | None
    text: str
    input_tokens: int
    output_tokens: int
    latency_ms: int
    worker_id: str
    created_at: datetime


@dataclass(frozen=True)
class Figures:
    """What `penstock status` shows of the flow. Source 001, section 10.2."""

    documents: dict[str, int]
    pages: dict[str, int]
    last_hour: Throughput

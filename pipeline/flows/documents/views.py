"""What callers get to see: plain typed objects, detached from the database."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

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


def document_view(row: Any) -> DocumentView:
    return DocumentView(**{**_pick(DocumentView, row), "status": DocumentStatus(row.status)})


def page_view(row: Any) -> PageView:
    return PageView(**{**_pick(PageView, row), "status": PageStatus(row.status)})


def attempt_view(row: Any) -> AttemptView:
    return AttemptView(**_pick(AttemptView, row))


def as_json(view: Any) -> dict[str, Any]:
    """A view as JSON can hold it: names of states, ISO instants."""
    return {name: _plain(value) for name, value in asdict(view).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, DocumentStatus | PageStatus):
        return value.name
    return value.isoformat() if isinstance(value, datetime) else value


def _pick(view: Any, row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in view.__dataclass_fields__}

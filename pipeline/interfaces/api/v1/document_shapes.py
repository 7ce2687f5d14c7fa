"""Documents, pages and attempts as the API shows them: what the views have, without paths and workers of the server."""

from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from pipeline.flows.documents.queries import DocumentView

if TYPE_CHECKING:
    from tasks.documents import Document

EXAMPLE: dict[str, JsonValue] = {
    "id": "0123456789abcdef", "filename": "report.pdf", "type": "pdf", "status": "COMPLETED", "progress": 100,
    "settled": True, "has_result": True, "pages": 12, "completed_count": 12, "failed_count": 0, "page_range": "",
    "provider": "local", "model": "", "model_name": "", "error": None, "allow_partial": False, "size_bytes": 123456,
    "created_at": "2026-11-22T10:00:00Z", "updated_at": "2026-11-22T10:00:09Z", "started_at": "2026-11-22T10:00:01Z",
    "finished_at": "2026-11-22T10:00:09Z",
}  # fmt: skip


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
    pages: int = Field(description="Pages to convert; 0 until the document is split.")
    completed_count: int
    failed_count: int
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


def shape(document: "Document") -> DocumentShape:
    """A document as the API shows it."""
    names = DocumentShape.model_fields.keys() & DocumentView.__dataclass_fields__.keys()
    shown = {name: getattr(document, name) for name in names}
    shown |= {"status": document.status.name, "settled": document.settled, "has_result": bool(document.merged_path)}
    return DocumentShape(**shown)

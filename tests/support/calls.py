"""Sample rows of calls to AI services."""

from datetime import datetime
from typing import Any


def call_row(provider: str, at: datetime, **values: Any) -> dict[str, Any]:
    """A row of `ai_calls`, a page of the document `doc` unless `values` say otherwise."""
    return {
        "flow": "documents",
        "scope_id": "doc",
        "unit": "1",
        "capability": "vision",
        "operation": "page_to_markdown",
        "provider": provider,
        "model": "small",
        "status": "ok",
        "error": None,
        "latency_ms": 10,
        "input_tokens": 0,
        "output_tokens": 0,
        "cost": 0.0,
        "preview": "",
        "created_at": at,
        **values,
    }

"""What the stages do, as plain functions: no Celery, no Redis, no database. Source 001, sections 4.2 and 4.4."""

from collections.abc import Sequence
from typing import Any

from pipeline.documents.states import DocumentStatus, PageStatus
from pipeline.documents.views import AttemptView, DocumentView, PageView, as_json

MANIFEST_VERSION = 1


def merge_markdown(pages: Sequence[PageView]) -> str:
    """The pages' Markdown in order, each under a `<!-- Page n -->`, with rules between; gaps are marked visibly."""
    parts = [f"<!-- Page {page.page} -->\n\n{_body(page)}" for page in sorted(pages, key=lambda page: page.page)]
    return "\n\n---\n\n".join(parts) + "\n"


def _body(page: PageView) -> str:
    if page.status is PageStatus.COMPLETED:
        return page.content.strip("\n")
    reason = " ".join((page.error or "not converted").split())
    return f"> **[Page {page.page} is missing: {reason}]**"


def manifest(document: DocumentView, pages: Sequence[PageView], attempts: Sequence[AttemptView]) -> dict[str, Any]:
    """What happened, for programs: the document, each page with its attempts, and the sums. Without the texts."""
    by_page: dict[int, list[AttemptView]] = {}
    for attempt in attempts:
        by_page.setdefault(attempt.page, []).append(attempt)
    return {
        "version": MANIFEST_VERSION,
        "document": as_json(document) | {"complete": document.status is DocumentStatus.COMPLETED},
        "totals": {
            "pages": document.pages,
            "completed": document.completed_count,
            "failed": document.failed_count,
            "attempts": len(attempts),
            "cached": sum(attempt.cached for attempt in attempts),
            "input_tokens": sum(attempt.input_tokens for attempt in attempts),
            "output_tokens": sum(attempt.output_tokens for attempt in attempts),
            "conversion_ms": sum(attempt.latency_ms for attempt in attempts),
        },
        "pages": [_page_entry(page, by_page.get(page.page, [])) for page in pages],
    }


def _page_entry(page: PageView, attempts: Sequence[AttemptView]) -> dict[str, Any]:
    entry = as_json(page)
    del entry["content"], entry["worker_id"], entry["next_run_at"]
    entry["characters"] = len(page.content)
    entry["attempts"] = [
        {k: v for k, v in as_json(attempt).items() if k not in {"text", "page"}} for attempt in attempts
    ]
    return entry

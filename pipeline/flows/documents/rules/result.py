"""What the stages do, as plain functions: no Celery, no Redis, no database. Source 001, sections 4.2 and 4.4."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pipeline.engine.views import plain
from pipeline.flows.documents.rules.split_tables import Layout, join_tables
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.views import AttemptView, DocumentView, PageView

MANIFEST_VERSION = 1
LAYOUT_VERSION = 1


def merge_markdown(pages: Sequence[PageView], layouts: Mapping[int, Layout] = MappingProxyType({})) -> str:
    """The pages' Markdown in order, each under a `<!-- Page n -->`, with rules between; gaps are marked visibly.

    Tables that go on over a page's end stand on the page where they begin. `layouts`: of pages, by their number.
    """
    ordered = sorted(pages, key=lambda page: page.page)
    texts = join_tables([_body(page) for page in ordered], [layouts.get(page.page) for page in ordered])
    parts = [f"<!-- Page {page.page} -->\n\n{text}" for page, text in zip(ordered, texts, strict=True)]
    return "\n\n---\n\n".join(parts) + "\n"


def layout_json(document: DocumentView, pages: Sequence[PageView], layouts: Mapping[int, Layout]) -> dict[str, Any]:
    """What stands where, for programs. A page whose converter does not know has its Markdown as a single block."""
    return {
        "version": LAYOUT_VERSION,
        "document": {"id": document.id, "filename": document.filename, "pages": document.pages},
        "pages": [_page_layout(page, layouts.get(page.page)) for page in pages],
    }


def _page_layout(page: PageView, layout: Layout | None) -> dict[str, Any]:
    found = {"page": page.page, "page_source": page.page_source, "status": page.status.name}
    if page.status is not PageStatus.COMPLETED:
        return found | {"width": None, "height": None, "blocks": [], "error": page.error}
    if layout is None:
        return found | {
            "width": None, "height": None, "blocks": [{"type": "markdown", "text": page.content, "bbox": None}],
        }  # fmt: skip
    return found | dict(layout)


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
        "document": plain(document) | {"complete": document.status is DocumentStatus.COMPLETED},
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
    entry: dict[str, Any] = plain(page)
    del entry["content"], entry["worker_id"], entry["next_run_at"]
    entry["characters"] = len(page.content)
    entry["attempts"] = [{k: v for k, v in plain(attempt).items() if k not in {"text", "page"}} for attempt in attempts]
    return entry

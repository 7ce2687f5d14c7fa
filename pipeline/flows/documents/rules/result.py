"""A document's results: Markdown, layout JSON and the manifest. Rules: docs/sources/documents.md#merging.

Arguments are documents, pages and attempts as JSON, as `engine.views.plain` makes them.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pipeline.flows.documents.rules.doubt import is_uncertain
from pipeline.flows.documents.rules.split_tables import Layout, join_tables
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.reading.layout.inline import literal

MANIFEST_VERSION = 1
LAYOUT_VERSION = 1
Json = Mapping[str, Any]


def merge_markdown(pages: Sequence[Json], layouts: Mapping[int, Layout] = MappingProxyType({})) -> str:
    """Join the pages' Markdown by position, each below `<!-- Page n -->` (n: its number in the file), with `---`
    between pages.

    A missing page has a line with its reason. A table that continues over a page break moves to the page where it
    begins. `layouts`: by position in the result.
    """
    ordered = sorted(pages, key=lambda page: int(page["page"]))
    joined = page_texts(ordered, layouts)
    parts = [f"<!-- Page {page['page_source']} -->\n\n{text}" for page, text in zip(ordered, joined, strict=True)]
    return "\n\n---\n\n".join(parts) + "\n"


def page_texts(ordered: Sequence[Json], layouts: Mapping[int, Layout]) -> list[str]:
    """Return the Markdown of each page as in the merged result: split tables move to the page where they begin.
    `layouts`: by position in the result."""
    return join_tables([page_text(page) for page in ordered], [layouts.get(page["page"]) for page in ordered])


def page_text(page: Json) -> str:
    """Return the page's Markdown, or a line that says why it is missing; a text older than a failed retry says so."""
    if has_text(page["status"], page["content"]):
        text = str(page["content"]).strip("\n")
        return (
            text
            if _is_completed(page)
            else f"<!-- the last retry of this page failed; this text is older -->\n\n{text}"
        )
    # The error may quote a service: escape it, so that it creates no link, picture or markup.
    reason = literal(page["error"] or "not converted")
    return f"> **[Page {page['page_source']} is missing: {reason}]**"


def joinable(pages: Sequence[Json]) -> list[int]:
    """Return the positions of pages that begin or end with a table; only their layouts are needed to join split
    tables."""
    begins, ends = ("|", "<table>"), ("|", "</table>")
    return [page["page"] for page in pages if page["content"].startswith(begins) or page["content"].endswith(ends)]


def layout_head(document: Json) -> dict[str, Any]:
    """Return what precedes `pages` in a document's layout, as a dict ready for JSON."""
    return {"version": LAYOUT_VERSION, "document": {name: document[name] for name in ("id", "filename", "pages")}}


def layout_page(page: Json, layouts: Mapping[int, Layout]) -> dict[str, Any]:
    """Return a dict, ready for JSON, with the blocks of a page and their boxes; the Markdown is the single block of a
    page without a layout."""
    entry = {name: page[name] for name in ("page", "page_source", "status")}
    if not has_text(page["status"], page["content"]):
        return entry | {"width": None, "height": None, "blocks": [], "error": page["error"]}
    if page["page"] in layouts:
        return entry | {name: fact for name, fact in layouts[page["page"]].items() if name not in {"lines", "lean"}}
    text = {"type": "markdown", "text": page["content"], "bbox": None}
    return entry | {"width": None, "height": None, "blocks": [text]}


def manifest(
    document: Json, pages: Sequence[Json], attempts: Sequence[Json], costs: Sequence[Json] = ()
) -> dict[str, Any]:
    """Return the record of a document without its texts: pages with their attempts, totals, and costs by provider."""
    entries: dict[int, dict[str, Any]] = {}
    for page in pages:
        entry = {name: value for name, value in page.items() if name not in {"content", "worker_id", "next_run_at"}}
        uncertain = is_uncertain(page["uncertain_share"])
        entries[page["page"]] = entry | {"characters": len(page["content"]), "uncertain": uncertain, "attempts": []}
    for attempt in attempts:
        if attempt["page"] in entries:
            shown = {name: value for name, value in attempt.items() if name not in {"text", "page"}}
            entries[attempt["page"]]["attempts"].append(shown)
    return {
        "version": MANIFEST_VERSION,
        "document": {**document, "complete": document["status"] == DocumentStatus.COMPLETED.name},
        "totals": {
            "pages": document["pages"],
            "completed": document["completed_count"],
            "failed": document["failed_count"],
            "attempts": len(attempts),
            "doubtful": sum(page["doubtful"] for page in pages),
            "uncertain": sum(entry["uncertain"] for entry in entries.values()),
            "cached": sum(attempt["cached"] for attempt in attempts),
            "input_tokens": sum(attempt["input_tokens"] for attempt in attempts),
            "output_tokens": sum(attempt["output_tokens"] for attempt in attempts),
            "conversion_ms": sum(attempt["latency_ms"] for attempt in attempts),
            "cost": round(sum(attempt["cost"] for attempt in attempts), 9),
        },
        "costs": list(costs),
        "pages": list(entries.values()),
    }


def has_text(status: str, content: str) -> bool:
    """Whether a page has a text; a page whose retry failed keeps its earlier text."""
    return status == PageStatus.COMPLETED.name or bool(content)


def _is_completed(page: Json) -> bool:
    return bool(page["status"] == PageStatus.COMPLETED.name)

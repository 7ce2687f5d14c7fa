"""What a document's pages become: Markdown, layout JSON and the manifest. Rules: docs/sources/documents.md#merging.

Documents, pages and attempts come as JSON, the way `engine.views.plain` writes them.
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
    """The pages' Markdown in order, each below `<!-- Page n -->` (n: its page of the file), with rules between.

    A gap says why it is there. A table that continues over a page break goes to the page where it begins.
    `layouts`: page number to layout.
    """
    ordered = sorted(pages, key=lambda page: int(page["page"]))
    joined = page_texts(ordered, layouts)
    parts = [f"<!-- Page {page['page_source']} -->\n\n{text}" for page, text in zip(ordered, joined, strict=True)]
    return "\n\n---\n\n".join(parts) + "\n"


def page_texts(ordered: Sequence[Json], layouts: Mapping[int, Layout]) -> list[str]:
    """The Markdown of each page as it is in the merged result."""
    return join_tables([page_text(page) for page in ordered], [layouts.get(page["page"]) for page in ordered])


def page_text(page: Json) -> str:
    """The page's Markdown, or why it is missing."""
    if has_text(page["status"], page["content"]):
        text = str(page["content"]).strip("\n")
        return (
            text
            if _is_completed(page)
            else f"<!-- the last retry of this page failed; this text is older -->\n\n{text}"
        )
    # A service's words may be in it: they must not become a link, a picture or markup.
    reason = literal(page["error"] or "not converted")
    return f"> **[Page {page['page_source']} is missing: {reason}]**"


def joinable(pages: Sequence[Json]) -> list[int]:
    """The numbers of the pages that begin or end with a table: only theirs are the layouts that joining looks at."""
    begins, ends = ("|", "<table>"), ("|", "</table>")
    return [page["page"] for page in pages if page["content"].startswith(begins) or page["content"].endswith(ends)]


def layout_json(document: Json, pages: Sequence[Json], layouts: Mapping[int, Layout]) -> dict[str, Any]:
    """The blocks of each page with their boxes. A page without a layout has its Markdown as a single block."""
    found: list[dict[str, Any]] = []
    for page in pages:
        entry = {name: page[name] for name in ("page", "page_source", "status")}
        if not has_text(page["status"], page["content"]):
            entry |= {"width": None, "height": None, "blocks": [], "error": page["error"]}
        elif page["page"] in layouts:
            entry |= layouts[page["page"]]
        else:
            text = {"type": "markdown", "text": page["content"], "bbox": None}
            entry |= {"width": None, "height": None, "blocks": [text]}
        found.append(entry)
    return {
        "version": LAYOUT_VERSION,
        "document": {name: document[name] for name in ("id", "filename", "pages")},
        "pages": found,
    }


def manifest(
    document: Json, pages: Sequence[Json], attempts: Sequence[Json], costs: Sequence[Json] = ()
) -> dict[str, Any]:
    """What happened, without the texts: the document, each page with its attempts, the totals, and who was paid."""
    entries: dict[int, dict[str, Any]] = {}
    for page in pages:
        entry = {name: value for name, value in page.items() if name not in {"content", "worker_id", "next_run_at"}}
        uncertain = is_uncertain(page["uncertain_share"])
        entries[page["page"]] = entry | {"characters": len(page["content"]), "uncertain": uncertain, "attempts": []}
    for attempt in attempts:
        if attempt["page"] in entries:
            tried = {name: value for name, value in attempt.items() if name not in {"text", "page"}}
            entries[attempt["page"]]["attempts"].append(tried)
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
    """Whether a page in this state has a text of its own. One whose retry failed keeps the text from before."""
    return status == PageStatus.COMPLETED.name or bool(content)


def _is_completed(page: Json) -> bool:
    return bool(page["status"] == PageStatus.COMPLETED.name)

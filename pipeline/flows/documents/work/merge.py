"""The merge stage: joins the pages into one Markdown file with a manifest beside it.

Rules: docs/sources/documents.md#merging.
"""

import json
from typing import Any

import structlog

from pipeline.engine.claims import Owner
from pipeline.engine.transaction import Tx
from pipeline.engine.views import plain, view_of
from pipeline.flows.documents import files, queries
from pipeline.flows.documents.rules.result import joinable, manifest, merge_markdown
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus
from pipeline.flows.documents.views import DocumentView
from pipeline.flows.documents.work import document as stage
from pipeline.flows.documents.work.document import ClaimLost
from pipeline.reading.files.inputs import manifest_path
from pipeline.reading.files.user_file import staged
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)


def merge_document(context: Context, document_id: str, owner: Owner) -> bool:
    """Merge the document if it waits for that, and return whether it did. Failures go to the row."""
    document = stage.claim(context, stage.MERGE, document_id, owner)
    if document is None:
        return False
    try:
        write_result(context, document)
    except ClaimLost:
        log.info("document.merge_discarded", document=document_id, worker=owner.worker_id)
        return False
    except Exception as error:  # noqa: BLE001  # any failure must reach the row
        stage.fail(context, stage.MERGE, document, error)
        return False
    files.remove_temp(context.settings, document_id)
    log.info("document.merged", document=document_id, pages=document.pages, worker=owner.worker_id)
    return True


def write_result(context: Context, document: Any) -> None:
    """Put Markdown and manifest in place, and make the document COMPLETED, or PARTIAL_FAILED if a page is missing.
    Raises `ClaimLost`, `OSError`."""
    path = files.output_path(context.settings, document.id, document.filename)
    partial = document.completed_count < document.pages
    event = DocumentEvent.MERGED_PARTIAL if partial else DocumentEvent.MERGED
    now = context.db.now()
    pages = [plain(page) for page in queries.pages(context, document.id)]
    values: dict[str, Any] = {
        "merged_path": str(path),
        "outdated": False,
        "doubtful_count": sum(page["doubtful"] for page in pages),
        "progress": 95 if partial else 100,
        "finished_at": now,
    }
    status = DOCUMENT.target(DocumentStatus.MERGING, event)
    after = view_of(DocumentView, document, **values, status=status, worker_id=None, error=None, updated_at=now)
    text = merge_markdown(pages, queries.layouts(context, document.id, joinable(pages)))
    attempts = [plain(attempt) for attempt in queries.attempts(context, document.id)]
    costs = [plain(cost) for cost in queries.costs(context, document.id)]
    facts = json.dumps(manifest(plain(after), pages, attempts, costs), indent=2, ensure_ascii=False)

    def commit(tx: Tx) -> None:
        stage.settle(tx, stage.MERGE, document, event, unindexed=True, **values)
        # Before the commit, under the row's lock: so every COMPLETED row has its file, and a merger that lost its claim
        # places no file.
        place_text()
        place_manifest()

    with (
        staged(path, text) as place_text,
        staged(manifest_path(path), facts) as place_manifest,
    ):
        context.db.run(commit)

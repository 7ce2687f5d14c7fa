"""The merge stage: pages become one Markdown file with a manifest beside it. Source 001, section 4.4."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE, Claim, Owner, held_by
from pipeline.engine.views import view_of
from pipeline.flows.documents import files, queries
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.rules.result import manifest, merge_markdown
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus
from pipeline.flows.documents.views import DocumentView, PageView
from pipeline.flows.documents.work import stage
from pipeline.flows.documents.work.split import ClaimLost
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)


def merge(context: Context, document_id: str, owner: Owner) -> bool:
    """Merge the document if it waits for that; whether it did. Failures end on the row."""
    claimed = stage.claim_stage(context, document_id, DocumentEvent.CLAIM_MERGE, owner)
    if claimed is None:
        return False
    document, claim = claimed
    try:
        _merge(context, document, claim)
    except ClaimLost:
        log.info("document.merge_discarded", document=document_id)
        return False
    except OSError as error:
        path = files.output_folder(context.settings, document_id)
        stage.fail_stage(context, document_id, claim, files.storage_error(error, path))
        return False
    except Exception as error:  # noqa: BLE001  # whatever it is, it must end on the row
        stage.fail_stage(context, document_id, claim, error)
        return False
    files.remove_temp(context.settings, document_id)
    log.info("document.merged", document=document_id, pages=document.pages)
    return True


def _merge(context: Context, document: Any, claim: Claim) -> None:
    pages = queries.pages(context, document.id)
    layouts = queries.layouts(context, document.id, _with_tables(pages))
    path = files.output_path(context.settings, document.id, document.filename)
    partial = document.completed_count < document.pages
    event = DocumentEvent.MERGED_PARTIAL if partial else DocumentEvent.MERGED
    status = DOCUMENT.target(DocumentStatus.MERGING, event)
    now = datetime.now(UTC)
    values = {
        "merged_path": str(path),
        "progress": 95 if partial else 100,
        "finished_at": now,
        "updated_at": now,
        "error": None,
    }
    after = view_of(DocumentView, document, **values, status=status, worker_id=None)
    facts = manifest(after, pages, queries.attempts(context, document.id))

    def commit(session: Session) -> None:
        moved = DOCUMENT.move(
            session, DOCUMENTS, event, DOCUMENTS.c.id == document.id, held_by(DOCUMENTS, claim),
            **FREE, **values, attempts=0,
        )  # fmt: skip
        if not moved:
            raise ClaimLost
        # In place before the commit, under the row's lock: neither a COMPLETED row without its file,
        # nor a file from a merger that was overtaken.
        place_text()
        place_manifest()

    with (
        files.staged_text(path, merge_markdown(pages, layouts)) as place_text,
        files.staged_text(files.manifest_path(path), json.dumps(facts, indent=2, ensure_ascii=False)) as place_manifest,
    ):
        context.db.run(commit)


def _with_tables(pages: Sequence[PageView]) -> list[int]:
    """Pages that begin or end with a table: of others nobody asks where it stands."""
    tables = ("|", "<table>"), ("|", "</table>")
    return [page.page for page in pages if page.content.startswith(tables[0]) or page.content.endswith(tables[1])]

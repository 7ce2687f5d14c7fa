"""Documents: split → convert → merge. Source 001."""

from pipeline.flows.documents import recovery, submission
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.flow import Flow

FLOW = Flow(
    name="documents",
    claimed=(DOCUMENTS, PAGES),
    due=recovery.due_pages,
    next_wait_s=recovery.next_wait_s,
    free_lost=recovery.free_lost,
    release=recovery.release_worker,
    unmoved=recovery.unmoved,
    clean_up=submission.remove_orphans,
    followed={"documents": (DOCUMENTS, DocumentStatus), "pages": (PAGES, PageStatus)},
)

"""Documents: split → convert → merge. Source 001."""

from pipeline.flows.documents import plan, recovery, retention, submission
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.flow import Flow

FLOW = Flow(
    name="documents",
    claimed=(DOCUMENTS, PAGES),
    due=plan.due,
    next_wait_s=plan.next_wait_s,
    release_lost=recovery.release_lost,
    release=recovery.release_workers,
    unmoved=plan.unmoved,
    clean_up=submission.remove_orphans,
    retained=retention.retained,
    followed={"documents": (DOCUMENTS, DocumentStatus), "pages": (PAGES, PageStatus)},
)

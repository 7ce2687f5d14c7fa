"""The Python API of the documents flow.

>>> from tasks.documents import submit
>>> document = submit("report.pdf").wait()
>>> print(document.status.name, document.read_text()[:80])

Every function returns plain typed objects; a document has `wait()`. All raise `UserError` with a message for people.
"""

from pipeline.engine.errors import NoWorkerWarning, UserError
from pipeline.engine.logs import configure_as_library
from pipeline.engine.presence import NoWorker
from pipeline.flows.documents.catalog import Filter
from pipeline.flows.documents.queries import UnknownDocument
from pipeline.flows.documents.service import Choice
from pipeline.flows.documents.states import DocumentStatus, EscalationState, PageStatus
from pipeline.flows.documents.submission import Options
from pipeline.flows.documents.views import AttemptView, CostView, EscalationView, Figures, Hit, Hits, PageView, Reason
from pipeline.operations.documents import (
    ArchivedFile,
    Document,
    attempts,
    cancel,
    costs,
    count_by_status,
    count_documents,
    delete,
    escalate,
    figures,
    find_page_picture,
    last_hour,
    list_documents,
    page,
    page_picture,
    pages,
    pages_by_minute,
    pause,
    promote,
    reasons,
    remerge,
    resume,
    retry,
    retry_failed,
    retry_page,
    search,
    searchable_pdf,
    searchable_report,
    several,
    status,
    submit,
    submit_archive,
    submit_upload,
    watch,
)

__all__ = [
    "ArchivedFile",
    "AttemptView",
    "Choice",
    "CostView",
    "Document",
    "DocumentStatus",
    "EscalationState",
    "EscalationView",
    "Figures",
    "Filter",
    "Hit",
    "Hits",
    "NoWorker",
    "NoWorkerWarning",
    "Options",
    "PageStatus",
    "PageView",
    "Reason",
    "UnknownDocument",
    "UserError",
    "attempts",
    "cancel",
    "costs",
    "count_by_status",
    "count_documents",
    "delete",
    "escalate",
    "figures",
    "find_page_picture",
    "last_hour",
    "list_documents",
    "page",
    "page_picture",
    "pages",
    "pages_by_minute",
    "pause",
    "promote",
    "reasons",
    "remerge",
    "resume",
    "retry",
    "retry_failed",
    "retry_page",
    "search",
    "searchable_pdf",
    "searchable_report",
    "several",
    "status",
    "submit",
    "submit_archive",
    "submit_upload",
    "watch",
]

configure_as_library()

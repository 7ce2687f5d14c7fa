"""The states of documents and pages, and the events that change them.

Rules: docs/sources/documents.md#document-states.
"""

from enum import IntEnum, StrEnum

from pipeline.engine.states import Machine


class DocumentStatus(IntEnum):
    """The state of a document, by the design's codes. Only the design's answers to questions name PAUSED."""

    FAILED = 0
    PENDING = 1
    SPLITTING = 2
    PROCESSING = 3
    READY_TO_MERGE = 4
    MERGING = 5
    COMPLETED = 6
    CANCELLED = 7
    PARTIAL_FAILED = 8
    PAUSED = 9


class PageStatus(IntEnum):
    """The state of a page, by the design's codes."""

    FAILED = -1
    PENDING = 0
    PROCESSING = 1
    COMPLETED = 2
    RETRYING = 3


class DocumentEvent(StrEnum):
    """An event of a document."""

    CLAIM_SPLIT = "claim_split"
    SPLIT_DONE = "split_done"
    PAGES_DONE = "pages_done"
    PAGES_DONE_PARTIAL = "pages_done_partial"
    PAGES_FAILED = "pages_failed"
    """All pages failed, so the document has no text."""
    CLAIM_MERGE = "claim_merge"
    MERGED = "merged"
    MERGED_PARTIAL = "merged_partial"
    FAIL = "fail"
    GIVE_BACK = "give_back"
    """The claim was released or lost: the stage starts over."""
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME_SPLIT = "resume_split"
    RESUME_PAGES = "resume_pages"
    RESUME_MERGE = "resume_merge"
    RESUME_PARTIAL = "resume_partial"
    RESUME_FAILED = "resume_failed"
    RETRY = "retry"
    RETRY_PAGES = "retry_pages"
    REMERGE = "remerge"
    PROMOTE_PAGE = "promote_page"
    """An older attempt gave the first text to a document whose pages all failed."""


class PageEvent(StrEnum):
    """An event of a page."""

    CLAIM = "claim"
    DONE = "done"
    FAIL = "fail"
    WAIT = "wait"
    """A transient error: try again when the row is due."""
    GIVE_BACK = "give_back"
    RETRY = "retry"
    PROMOTE = "promote"
    """An older attempt becomes the page's text."""
    ESCALATE = "escalate"
    """The page goes to the provider that its document escalates to; its text stays until a better one exists."""
    KEEP = "keep"
    """The escalation ended without an answer: the page keeps its text."""


class EscalationState(StrEnum):
    """The state of a page's escalation to another provider."""

    WAITING = "waiting"
    """The budget has no room until open escalations are settled."""
    OPEN = "open"
    """The page waits for the provider, or is there."""
    REPLACED = "replaced"
    """The provider's text is the page's."""
    KEPT = "kept"
    """The provider's text was worse: the page keeps its own."""
    FAILED = "failed"
    """The provider gave no usable answer: the page stays as it was."""
    UNPAID = "unpaid"
    """The budget is spent: the page stays as it was."""


_D, _E = DocumentStatus, DocumentEvent

DOCUMENT = Machine(
    "document",
    {
        (_D.PENDING, _E.CLAIM_SPLIT): _D.SPLITTING,
        (_D.SPLITTING, _E.SPLIT_DONE): _D.PROCESSING,
        (_D.SPLITTING, _E.FAIL): _D.FAILED,
        (_D.SPLITTING, _E.GIVE_BACK): _D.PENDING,
        (_D.PROCESSING, _E.PAGES_DONE): _D.READY_TO_MERGE,
        (_D.PROCESSING, _E.PAGES_DONE_PARTIAL): _D.PARTIAL_FAILED,
        (_D.PROCESSING, _E.PAGES_FAILED): _D.FAILED,
        (_D.READY_TO_MERGE, _E.CLAIM_MERGE): _D.MERGING,
        (_D.MERGING, _E.MERGED): _D.COMPLETED,
        (_D.MERGING, _E.MERGED_PARTIAL): _D.PARTIAL_FAILED,
        (_D.MERGING, _E.FAIL): _D.FAILED,
        (_D.MERGING, _E.GIVE_BACK): _D.READY_TO_MERGE,
        # Users' commands. A document whose merge fails keeps its pages, since they were paid for.
        **{(state, _E.CANCEL): _D.CANCELLED for state in _D},
        **{
            (state, _E.PAUSE): _D.PAUSED
            for state in (_D.PENDING, _D.SPLITTING, _D.PROCESSING, _D.READY_TO_MERGE, _D.MERGING)
        },
        (_D.PAUSED, _E.RESUME_SPLIT): _D.PENDING,
        (_D.PAUSED, _E.RESUME_PAGES): _D.PROCESSING,
        (_D.PAUSED, _E.RESUME_MERGE): _D.READY_TO_MERGE,
        (_D.PAUSED, _E.RESUME_PARTIAL): _D.PARTIAL_FAILED,
        (_D.PAUSED, _E.RESUME_FAILED): _D.FAILED,
        **{(state, _E.RETRY): _D.PENDING for state in (_D.FAILED, _D.PARTIAL_FAILED, _D.CANCELLED, _D.COMPLETED)},
        **{
            (state, _E.RETRY_PAGES): _D.PROCESSING
            for state in (_D.COMPLETED, _D.PARTIAL_FAILED, _D.FAILED, _D.CANCELLED, _D.PROCESSING, _D.READY_TO_MERGE)
        },
        **{
            (state, _E.REMERGE): _D.READY_TO_MERGE
            for state in (_D.COMPLETED, _D.PARTIAL_FAILED, _D.FAILED, _D.CANCELLED)
        },
        (_D.FAILED, _E.PROMOTE_PAGE): _D.PARTIAL_FAILED,
    },
)

_P, _Q = PageStatus, PageEvent

PAGE = Machine(
    "page",
    {
        (_P.PENDING, _Q.CLAIM): _P.PROCESSING,
        (_P.RETRYING, _Q.CLAIM): _P.PROCESSING,
        (_P.PROCESSING, _Q.DONE): _P.COMPLETED,
        (_P.PROCESSING, _Q.FAIL): _P.FAILED,
        (_P.PROCESSING, _Q.WAIT): _P.PENDING,
        (_P.PROCESSING, _Q.GIVE_BACK): _P.PENDING,
        (_P.COMPLETED, _Q.RETRY): _P.RETRYING,
        (_P.FAILED, _Q.RETRY): _P.RETRYING,
        (_P.COMPLETED, _Q.PROMOTE): _P.COMPLETED,
        (_P.FAILED, _Q.PROMOTE): _P.COMPLETED,
        (_P.COMPLETED, _Q.ESCALATE): _P.RETRYING,
        (_P.FAILED, _Q.ESCALATE): _P.RETRYING,
        **{(state, _Q.KEEP): _P.COMPLETED for state in (_P.FAILED, _P.PENDING, _P.RETRYING)},
    },
)

OPEN = frozenset({_D.PENDING, _D.PROCESSING, _D.READY_TO_MERGE})
"""States in which a document or its pages may wait for a worker."""
AT_REST = frozenset({_D.COMPLETED, _D.FAILED, _D.PARTIAL_FAILED, _D.CANCELLED})
"""States that only a user's command can end."""


_RESUMED = {
    DocumentEvent.PAGES_DONE: DocumentEvent.RESUME_MERGE,
    DocumentEvent.PAGES_DONE_PARTIAL: DocumentEvent.RESUME_PARTIAL,
    DocumentEvent.PAGES_FAILED: DocumentEvent.RESUME_FAILED,
}


def settled_event(pages: int, completed: int, failed: int, *, allow_partial: bool) -> DocumentEvent | None:
    """Return the event that ends PROCESSING with these counts; None while pages are outstanding.

    With `allow_partial`, a document with failed pages is merged too if at least one page was converted.
    """
    if completed + failed < pages:
        return None
    if failed == 0:
        return DocumentEvent.PAGES_DONE
    if completed == 0:
        return DocumentEvent.PAGES_FAILED
    return DocumentEvent.PAGES_DONE if allow_partial else DocumentEvent.PAGES_DONE_PARTIAL


def resume_event(pages: int, completed: int, failed: int, *, allow_partial: bool) -> DocumentEvent:
    """Return the event that resumes a PAUSED document, derived from its counts alone."""
    if pages == 0:
        return DocumentEvent.RESUME_SPLIT
    settled = settled_event(pages, completed, failed, allow_partial=allow_partial)
    return _RESUMED[settled] if settled else DocumentEvent.RESUME_PAGES


def progress(status: DocumentStatus, pages: int, completed: int, before: int) -> int:
    """Return percent, 0 to 100: 0 before splitting, 5 during it, 5 to 95 by the `completed` of `pages`, 95 during the
    merge, 100 after it. States that end without success, and PAUSED, keep the percentage `before`.

    Rule: docs/sources/documents.md#progress.
    """
    match status:
        case DocumentStatus.PENDING:
            return 0
        case DocumentStatus.SPLITTING:
            return 5
        case DocumentStatus.PROCESSING:
            return 5 + (completed * 90) // max(pages, 1)
        case DocumentStatus.READY_TO_MERGE | DocumentStatus.MERGING:
            return 95
        case DocumentStatus.COMPLETED:
            return 100
        case _:
            return before

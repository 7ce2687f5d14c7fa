"""Compares the machines with a second copy of the tables of docs/sources/documents.md#document-states."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.errors import UserError
from pipeline.engine.states import IllegalTransition
from pipeline.flows.documents.states import (
    AT_REST,
    DOCUMENT,
    PAGE,
    DocumentEvent,
    DocumentStatus,
    PageEvent,
    PageStatus,
    progress,
    resume_event,
    settled_event,
)

D, P = DocumentStatus, PageStatus

DOCUMENT_TABLE = """
    PENDING         claim_split         SPLITTING
    SPLITTING       split_done          PROCESSING
    SPLITTING       fail                FAILED
    PROCESSING      pages_done          READY_TO_MERGE
    PROCESSING      pages_done_partial  PARTIAL_FAILED
    READY_TO_MERGE  claim_merge         MERGING
    MERGING         merged              COMPLETED
    MERGING         fail                FAILED
    COMPLETED       retry_pages         PROCESSING
    PARTIAL_FAILED  retry_pages         PROCESSING
    FAILED          retry               PENDING

    FAILED          cancel              CANCELLED
    PENDING         cancel              CANCELLED
    SPLITTING       cancel              CANCELLED
    PROCESSING      cancel              CANCELLED
    READY_TO_MERGE  cancel              CANCELLED
    MERGING         cancel              CANCELLED
    COMPLETED       cancel              CANCELLED
    CANCELLED       cancel              CANCELLED
    PARTIAL_FAILED  cancel              CANCELLED
    PAUSED          cancel              CANCELLED
"""
"""The design's table of transitions, and the cancel that is legal in any state."""

DOCUMENT_ADDITIONS = """
    SPLITTING       give_back           PENDING
    MERGING         give_back           READY_TO_MERGE
    MERGING         merged_partial      PARTIAL_FAILED
    PROCESSING      pages_failed        FAILED

    COMPLETED       remerge             READY_TO_MERGE
    PARTIAL_FAILED  remerge             READY_TO_MERGE
    FAILED          remerge             READY_TO_MERGE
    CANCELLED       remerge             READY_TO_MERGE
    COMPLETED       retry               PENDING
    PARTIAL_FAILED  retry               PENDING
    CANCELLED       retry               PENDING
    FAILED          retry_pages         PROCESSING
    CANCELLED       retry_pages         PROCESSING
    PROCESSING      retry_pages         PROCESSING
    READY_TO_MERGE  retry_pages         PROCESSING

    PENDING         pause               PAUSED
    SPLITTING       pause               PAUSED
    PROCESSING      pause               PAUSED
    READY_TO_MERGE  pause               PAUSED
    MERGING         pause               PAUSED
    PAUSED          resume_split        PENDING
    PAUSED          resume_pages        PROCESSING
    PAUSED          resume_merge        READY_TO_MERGE
    PAUSED          resume_partial      PARTIAL_FAILED
    PAUSED          resume_failed       FAILED
    FAILED          promote_page        PARTIAL_FAILED
"""
"""Recovery, commands and pausing, and what docs/sources/documents.md#differences adds."""

PAGE_TABLE = """
    PENDING     claim      PROCESSING
    RETRYING    claim      PROCESSING
    PROCESSING  done       COMPLETED
    PROCESSING  fail       FAILED
    PROCESSING  give_back  PENDING
    PROCESSING  wait       PENDING
    FAILED      retry      RETRYING
    COMPLETED   retry      RETRYING
    COMPLETED   promote    COMPLETED
    FAILED      promote    COMPLETED

    COMPLETED   escalate   RETRYING
    FAILED      escalate   RETRYING
    FAILED      keep       COMPLETED
    PENDING     keep       COMPLETED
    RETRYING    keep       COMPLETED
"""
"""docs/sources/documents.md#page-states; `wait` follows a transient error, `promote` takes an older attempt's text, and
`escalate` and `keep` are additions (#escalation)."""


def rows(*tables: str) -> set[tuple[str, str, str]]:
    cells = [tuple(line.split()) for table in tables for line in table.splitlines() if line.strip()]
    assert len(cells) == len(set(cells))
    return {(before, event, after) for before, event, after in cells}


def test_the_codes_are_the_design_s() -> None:
    assert {status.name: status.value for status in DocumentStatus} == {
        "FAILED": 0,
        "PENDING": 1,
        "SPLITTING": 2,
        "PROCESSING": 3,
        "READY_TO_MERGE": 4,
        "MERGING": 5,
        "COMPLETED": 6,
        "CANCELLED": 7,
        "PARTIAL_FAILED": 8,
        "PAUSED": 9,
    }
    codes = {"FAILED": -1, "PENDING": 0, "PROCESSING": 1, "COMPLETED": 2, "RETRYING": 3}
    assert {status.name: status.value for status in PageStatus} == codes


def test_documents_move_as_the_design_says_and_in_no_other_way() -> None:
    legal = {(before.name, event.value, after.name) for (before, event), after in DOCUMENT.legal.items()}
    assert legal == rows(DOCUMENT_TABLE, DOCUMENT_ADDITIONS)


def test_pages_move_as_the_design_says_and_in_no_other_way() -> None:
    legal = {(before.name, event.value, after.name) for (before, event), after in PAGE.legal.items()}
    assert legal == rows(PAGE_TABLE)


@pytest.mark.parametrize(("status", "event"), [*product(DocumentStatus, DocumentEvent)])
def test_a_document_s_undefined_transition_raises(status: DocumentStatus, event: DocumentEvent) -> None:
    expected = {(b, e): a for b, e, a in rows(DOCUMENT_TABLE, DOCUMENT_ADDITIONS)}.get((status.name, event.value))
    if expected:
        assert DOCUMENT.target(status, event).name == expected
    else:
        with pytest.raises(IllegalTransition, match=status.name):
            DOCUMENT.target(status, event)


@pytest.mark.parametrize(("status", "event"), [*product(PageStatus, PageEvent)])
def test_a_page_s_undefined_transition_raises(status: PageStatus, event: PageEvent) -> None:
    expected = {(b, e): a for b, e, a in rows(PAGE_TABLE)}.get((status.name, event.value))
    if expected:
        assert PAGE.target(status, event).name == expected
    else:
        with pytest.raises(IllegalTransition, match=status.name):
            PAGE.target(status, event)


def test_an_illegal_transition_is_an_error_for_people() -> None:
    with pytest.raises(UserError, match=r"^a document that is CANCELLED cannot claim merge$") as caught:
        DOCUMENT.target(D.CANCELLED, DocumentEvent.CLAIM_MERGE)
    assert caught.value.code == "illegal_state"


def test_sources_are_all_states_that_an_event_leads_away_from() -> None:
    assert DOCUMENT.sources(DocumentEvent.GIVE_BACK) == {D.SPLITTING: D.PENDING, D.MERGING: D.READY_TO_MERGE}
    assert PAGE.sources(PageEvent.CLAIM) == {P.PENDING: P.PROCESSING, P.RETRYING: P.PROCESSING}


def test_every_event_of_a_machine_can_happen() -> None:
    for event in DocumentEvent:
        assert DOCUMENT.sources(event)
    for page_event in PageEvent:
        assert PAGE.sources(page_event)


def test_only_users_change_a_document_at_rest() -> None:
    by_users = {
        DocumentEvent.CANCEL,
        DocumentEvent.RETRY,
        DocumentEvent.RETRY_PAGES,
        DocumentEvent.REMERGE,
        DocumentEvent.PROMOTE_PAGE,
    }
    assert {status.name for status in AT_REST} == {"COMPLETED", "FAILED", "PARTIAL_FAILED", "CANCELLED"}
    assert {event for (state, event) in DOCUMENT.legal if state in AT_REST} == by_users


@pytest.mark.parametrize(
    ("status", "pages", "completed", "before", "expected"),
    [
        (D.PENDING, 0, 0, 95, 0),
        (D.SPLITTING, 0, 0, 0, 5),
        (D.PROCESSING, 10, 0, 5, 5),
        (D.PROCESSING, 10, 5, 5, 50),
        (D.PROCESSING, 3, 1, 5, 35),
        (D.PROCESSING, 3, 2, 5, 65),
        (D.PROCESSING, 10, 10, 5, 95),
        (D.PROCESSING, 0, 0, 5, 5),
        (D.READY_TO_MERGE, 10, 10, 95, 95),
        (D.MERGING, 10, 10, 95, 95),
        (D.COMPLETED, 10, 10, 95, 100),
        (D.FAILED, 10, 10, 95, 95),
        (D.CANCELLED, 10, 4, 41, 41),
        (D.PARTIAL_FAILED, 10, 4, 41, 41),
        (D.PAUSED, 10, 4, 41, 41),
    ],
)
def test_progress_runs_as_the_design_says(
    status: DocumentStatus, pages: int, completed: int, before: int, expected: int
) -> None:
    assert progress(status, pages, completed, before) == expected


@given(st.integers(1, 100_000), st.data())
def test_progress_grows_from_5_to_95_while_pages_are_converted(pages: int, data: st.DataObject) -> None:
    completed = data.draw(st.integers(0, pages - 1))
    now, later = (progress(D.PROCESSING, pages, done, 0) for done in (completed, completed + 1))
    assert 5 <= now <= later <= 95
    assert (later == 95) == (completed + 1 == pages)


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int, int]:
    """Possible values of (pages, completed, failed)."""
    pages = draw(st.integers(1, 1000))
    completed = draw(st.integers(0, pages))
    return pages, completed, draw(st.integers(0, pages - completed) | st.just(pages - completed))


@given(counts(), st.booleans())
def test_a_document_is_settled_exactly_when_no_page_is_outstanding(
    figures: tuple[int, int, int], allow_partial: bool
) -> None:
    pages, completed, failed = figures
    event = settled_event(*figures, allow_partial=allow_partial)
    if completed + failed < pages:
        assert event is None
    elif completed == pages:
        assert event is DocumentEvent.PAGES_DONE
    elif completed == 0:
        assert event is DocumentEvent.PAGES_FAILED
    else:
        assert event is (DocumentEvent.PAGES_DONE if allow_partial else DocumentEvent.PAGES_DONE_PARTIAL)


@given(counts(), st.booleans())
def test_a_paused_document_resumes_where_an_unpaused_one_would_be(
    figures: tuple[int, int, int], allow_partial: bool
) -> None:
    event = settled_event(*figures, allow_partial=allow_partial)
    unpaused = DOCUMENT.target(D.PROCESSING, event) if event else D.PROCESSING
    resumed = DOCUMENT.target(D.PAUSED, resume_event(*figures, allow_partial=allow_partial))
    assert resumed is unpaused


def test_a_document_paused_before_it_was_split_resumes_with_splitting() -> None:
    for allow_partial in (False, True):
        assert DOCUMENT.target(D.PAUSED, resume_event(0, 0, 0, allow_partial=allow_partial)) is D.PENDING

"""Users' commands in the middle of a document."""

from collections import Counter

import pytest

from pipeline.flows.documents import files, queries
from pipeline.flows.documents.queries import UnknownDocument
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from tasks import documents
from tests.faults.flow import SQLITE, Flow
from tests.support.provider_server import Fault
from tests.support.stack import FLEET, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults
PAGES = 20
AT_ONCE = 4
"""The most calls that the fleet's one `ai` worker has under way."""


@pytest.fixture
def midway(stack: Stack, flow: Flow) -> str:
    """Submit a document and wait until some of its pages are done and some are under way."""
    stack.start(*FLEET)
    document_id = flow.submit(PAGES)
    flow.wait_for_calls(6)
    wait_until(lambda: flow.held(document_id), 90, "pages are under way")
    return document_id


def test_cancel_discards_pages_under_way_and_a_retry_pays_for_no_page_twice(midway: str, flow: Flow) -> None:
    images = flow.images(midway)
    cancelled = documents.cancel(midway)
    calls = len(flow.provider.records)
    flow.wait_until_quiet()
    assert len(flow.provider.records) <= calls + AT_ONCE
    after = flow.document(midway)
    assert (after.status, after.completed_count) == (DocumentStatus.CANCELLED, cancelled.completed_count)
    assert not flow.held(midway)
    # An attempt whose picture is deleted before its call makes no call.
    tried = [attempt for attempt in queries.attempts(flow.context, midway) if not attempt.effective]
    discarded = [attempt for attempt in tried if attempt.status == "completed"]
    assert len(discarded) + cancelled.completed_count == len(flow.provider.records)

    known = len(flow.provider.records)
    documents.retry(midway)
    flow.wait_for_status(midway)
    flow.assert_paid_once(images)
    assert {page.status for page in flow.pages(midway)} == {PageStatus.COMPLETED}
    cached = [attempt for attempt in queries.attempts(flow.context, midway) if attempt.cached]
    assert len(cached) == known


@pytest.mark.rotating
def test_pause_lets_pages_end_and_resume_continues(midway: str, flow: Flow) -> None:
    images = flow.images(midway)
    documents.pause(midway)
    flow.wait_until_quiet()
    paused = flow.document(midway)
    assert paused.status is DocumentStatus.PAUSED
    assert paused.completed_count == len(flow.provider.records) < PAGES
    assert not flow.held(midway)
    documents.resume(midway)
    flow.wait_for_status(midway)
    flow.assert_exactly_once(midway)
    flow.assert_paid_once(images)


def test_delete_removes_everything_and_breaks_no_worker(midway: str, flow: Flow) -> None:
    documents.delete(midway)
    flow.wait_until_quiet()
    with pytest.raises(UnknownDocument):
        flow.document(midway)
    assert not flow.pages(midway)
    assert not queries.attempts(flow.context, midway)
    for folder in (files.upload_folder, files.temp_folder, files.output_folder):
        assert not folder(flow.context.settings, midway).exists()
    other = flow.submit(4, "other.pdf")
    flow.wait_for_status(other)
    flow.assert_exactly_once(other)


@pytest.mark.rotating
@SQLITE
def test_retried_page_keeps_its_text_until_the_new_one_replaces_it(midway: str, flow: Flow) -> None:
    flow.wait_for_status(midway)
    before = flow.pages(midway)[0].content
    calls = len(flow.provider.records)
    flow.provider.push(Fault(status=200, text="# Another text", latency_s=2))
    documents.retry_page(midway, 1)
    flow.wait_for_calls(calls + 1)
    assert flow.pages(midway)[0].content == before
    flow.wait_for_status(midway)
    assert flow.pages(midway)[0].content == "# Another text"
    assert len(flow.provider.records) == calls + 1
    attempts = Counter(attempt.page for attempt in queries.attempts(flow.context, midway))
    assert attempts.pop(1) == 2
    assert set(attempts.values()) == {1}

"""Pool processes that die while they convert pages, and messages that a sibling of the working process receives."""

import os
import signal
from pathlib import Path

import pypdfium2 as pdfium
import pytest

from pipeline.flows.documents import queries
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.submission import Options
from pipeline.settings import LOCAL
from tasks import documents
from tests.faults.flow import POSTGRESQL, SQLITE, Flow, settings
from tests.support.corpus import corpus_file
from tests.support.provider_server import Fault
from tests.support.samples import scanned_pdf, text_pdf
from tests.support.stack import FLEET, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults
DEADLY = 3


@pytest.mark.rotating
def test_pool_process_killed_in_a_long_document_costs_no_page(stack: Stack, flow: Flow) -> None:
    stack.start("cpu-1", "control-1", "beat-1")
    document_id = documents.submit(corpus_file("documents/DA-619p.pdf"), Options(provider=LOCAL, page_range="1-150")).id
    wait_until(lambda: flow.document(document_id).completed_count > 20, 90, "20 pages are done")
    wait_until(lambda: _killed_with_a_page(stack, flow, document_id), 90, "the test kills the pool while it has a page")
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    attempts = {page.attempts for page in flow.pages(document_id)}
    assert attempts == {1, 2}, "only the pages of the pool are converted twice"


def _killed_with_a_page(stack: Stack, flow: Flow, document_id: str) -> bool:
    """Kill the pool unless it is between two hops, when no process has a page; return whether it was killed."""
    with stack["cpu-1"].pool_stopped():
        held = flow.held(document_id)
        if held:
            stack["cpu-1"].kill_pool()
        return bool(held)


@pytest.mark.rotating
@POSTGRESQL
def test_another_worker_splits_after_a_kill(stack: Stack, flow: Flow) -> None:
    stack.start(*FLEET, "cpu-2")
    document_id = documents.submit(corpus_file("documents/DA-619p.pdf")).id
    pictures = flow.context.settings.temp_dir / document_id
    wait_until(lambda: pictures.is_dir() and len(list(pictures.iterdir())) > 20, 90, "the first pages are rendered")
    worker_id = flow.document(document_id).worker_id
    assert worker_id
    stack[stack.holder(worker_id)].kill()
    flow.wait_for_status(document_id, DocumentStatus.PROCESSING)
    documents.cancel(document_id)
    assert [page.page_source for page in flow.pages(document_id)] == list(range(1, 620))


def _document_with_scan(folder: Path) -> Path:
    """Seven pages. Page 3 is a picture whose recognition takes long enough for the test to interrupt it."""
    texts = text_pdf(folder / "texts.pdf", [[f"Page {number} has a text layer."] for number in range(1, 7)])
    scan = scanned_pdf(folder / "scan.pdf", ["A scanned page", "that takes a while"])
    path = folder / "deadly.pdf"
    with pdfium.PdfDocument(texts) as document, pdfium.PdfDocument(scan) as page:
        document.import_pages(page, index=DEADLY - 1)
        document.save(path)
    return path


def _kill_converting_process(stack: Stack, flow: Flow, document_id: str, page: int) -> None:
    """Kill the process that has the page, once for each claim, until the page is settled."""
    killed: set[int] = set()

    def strike() -> bool:
        row = queries.pages(flow.context, document_id)[page - 1]
        if row.status is PageStatus.PROCESSING and row.attempts not in killed:
            assert row.worker_id
            stack[stack.holder(row.worker_id)].kill_pool()
            killed.add(row.attempts)
        return row.status in {PageStatus.FAILED, PageStatus.COMPLETED}

    wait_until(lambda: flow.pages(document_id), 90, "the document is split")
    wait_until(strike, 90, f"page {page} is settled", last=lambda: flow.pages(document_id)[page - 1])


@SQLITE
@settings(DOCUMENTS__BACKOFF_S="[0.1,0.2]")
def test_page_that_kills_its_process_every_time_fails_alone(stack: Stack, flow: Flow) -> None:
    # One process in each worker, so the claim names the process with the page.
    stack.start("single-1", "single-2", "control-1", "beat-1")
    document_id = documents.submit(_document_with_scan(flow.folder), Options(provider=LOCAL)).id
    _kill_converting_process(stack, flow, document_id, DEADLY)
    flow.wait_for_status(document_id, DocumentStatus.PARTIAL_FAILED)
    pages = flow.pages(document_id)
    assert {page.page for page in pages if page.status is not PageStatus.COMPLETED} == {DEADLY}
    assert pages[DEADLY - 1].attempts == 3
    assert "lost" in (pages[DEADLY - 1].error or "")
    assert "after 3 attempts" in (pages[DEADLY - 1].error or "")


PREFORK = ("cpu-1", "control-1", "pair-1", "beat-1")
SLOW = Fault(status=200, latency_s=6)


@pytest.mark.rotating
@SQLITE
def test_connections_cut_during_calls_repeat_no_paid_page_of_a_sibling_process(stack: Stack, flow: Flow) -> None:
    # The first process ends while the second is in its call, and gets the messages of both again.
    flow.provider.configure({"latency_s": 2})
    flow.provider.push(None, SLOW)
    stack.start(*PREFORK)
    document_id = flow.submit(2)
    flow.wait_for_calls(2)
    images = flow.images(document_id)
    flow.cut_connections()
    wait_until(lambda: stack["pair-1"].says("Connection to broker lost"), 90, "the worker has noticed")
    wait_until(lambda: flow.summary(document_id) == {"COMPLETED": 2}, 90, "both pages are converted")
    flow.assert_paid_once(images)
    assert {page.attempts for page in flow.pages(document_id)} == {1}


@SQLITE
@settings(PRESENCE_TTL_S="600", SWEEP_INTERVAL_S="600")
def test_only_the_page_of_a_killed_pool_process_is_retried_at_once(stack: Stack, flow: Flow) -> None:
    flow.provider.configure({"latency_s": 3})
    stack.start(*PREFORK)
    document_id = flow.submit(2)
    flow.wait_for_calls(2)
    images = flow.images(document_id)
    held = {page.worker_id: page.page for page in flow.pages(document_id, PageStatus.PROCESSING)}
    assert len(held) == 2, "each process holds its page"
    killed, lost = held.popitem()
    assert killed
    os.kill(int(killed.split(":")[1]), signal.SIGKILL)
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images, repeated={lost})
    assert {page.page: page.attempts for page in flow.pages(document_id)} == {lost: 2, 3 - lost: 1}

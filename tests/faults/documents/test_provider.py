"""A provider that is down, refuses calls, answers without end, or asks clients to wait."""

import pytest

from pipeline.flows.documents import queries
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.providers import gates
from tests.faults.conftest import KEY
from tests.faults.flow import SQLITE, START_S, Flow, settings
from tests.support.provider_server import Fault, ProviderServer, Record
from tests.support.stack import FLEET, Stack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, SQLITE]
PAGES = 6
THREADS = 4
"""Threads of the worker that calls the provider."""
QUEUE = "vision.test"


@pytest.mark.rotating
@settings(
    DOCUMENTS__BACKOFF_S="[0.1]", PROVIDERS__TEST__BREAKER_COOL_DOWN_S="0.2", PROVIDERS__TEST__BREAKER_LONGEST_S="0.5"
)
def test_provider_that_refuses_connections_costs_time_and_no_attempt(
    stack: Stack, flow: Flow, provider: ProviderServer
) -> None:
    provider.stop()  # the port refuses connections
    stack.start(*FLEET)
    document_id = flow.submit(PAGES)
    # Far more failures than all pages have attempts (12).
    wait_until(
        lambda: len(queries.attempts(flow.context, document_id)) > 20, START_S, "workers probe the provider repeatedly"
    )
    assert {page.attempts for page in flow.pages(document_id)} <= {0, 1}, "1 attempt: the page of a probe"
    assert flow.document(document_id).status is DocumentStatus.PROCESSING
    provider.start()
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    assert {(page.attempts, page.retry_count) for page in flow.pages(document_id)} == {(1, 0)}


@pytest.mark.rotating
@settings(PROVIDERS__TEST__API_KEY="wrong", PROVIDERS__TEST__BREAKER_COOL_DOWN_S="600")
def test_wrong_key_closes_the_queue_at_the_first_reply_and_a_new_key_opens_it(stack: Stack, flow: Flow) -> None:
    stack.start(*FLEET)
    document_id = flow.submit(PAGES)
    wait_until(
        lambda: "refused the key" in gates.closed_because(flow.context, QUEUE),
        START_S,
        "the queue names the reason of its closing",
    )
    calls = len(flow.provider.records)
    assert calls <= THREADS, "only calls under way at the first reply"
    wait_until(lambda: not flow.held(document_id), START_S, "the pages wait")
    assert {page.attempts for page in flow.pages(document_id)} == {0}
    stack["ai-1"].kill_group()
    stack.start("ai-1", PENSTOCK_PROVIDERS__TEST__API_KEY=KEY)
    flow.wait_for_status(document_id)
    assert flow.provider.counts == {401: calls, 200: PAGES}


# The breaker stays closed and the other pages succeed, so the failing page is itself at fault.
@pytest.mark.rotating
@settings(PROVIDERS__TEST__TIMEOUT_S="1", DOCUMENTS__BACKOFF_S="[0.1]", PROVIDERS__TEST__BREAKER_FAIL_MAX="1000")
def test_a_page_with_endless_output_is_cut_off_and_fails_alone(stack: Stack, flow: Flow) -> None:
    never_ends: list[str] = []

    def rule(record: Record) -> Fault | None:
        if not never_ends:
            never_ends.append(record.image_sha256)
        return Fault("trickle") if record.image_sha256 == never_ends[0] else None

    flow.provider.script.rule = rule
    stack.start(*FLEET)
    document_id = flow.submit(30)
    flow.wait_for_status(document_id, DocumentStatus.PARTIAL_FAILED)
    (failed,) = [page for page in flow.pages(document_id) if page.status is PageStatus.FAILED]
    assert "timeout" in (failed.error or "").lower()
    assert failed.attempts == 2


@pytest.mark.rotating
def test_rate_limit_uses_up_no_attempt(stack: Stack, flow: Flow) -> None:
    flow.provider.push(*[Fault(status=429, headers={"Retry-After": "1"})] * 4)
    stack.start(*FLEET)
    document_id = flow.submit(PAGES)
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    assert flow.provider.counts == {429: 4, 200: PAGES}
    assert {(page.attempts, page.retry_count) for page in flow.pages(document_id)} == {(1, 0)}


@settings(
    DOCUMENTS__BACKOFF_S="[0.1,0.1]", PROVIDERS__TEST__BREAKER_FAIL_MAX="3", PROVIDERS__TEST__BREAKER_COOL_DOWN_S="1"
)
def test_an_outage_of_the_provider_loses_no_page(stack: Stack, flow: Flow) -> None:
    flow.provider.push(*[Fault(status=503)] * 4, *[Fault("close")] * 2)
    stack.start(*FLEET)
    document_id = flow.submit(PAGES)
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    assert {(page.attempts, page.retry_count) for page in flow.pages(document_id)} == {(1, 0)}

"""A provider that is down, refuses, never stops, or wants its clients to wait."""

import pytest

from pipeline.flows.documents import queries
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from tests.faults.flow import SQLITE, Flow, settings
from tests.support.provider_server import Fault, ProviderServer
from tests.support.stack import FLEET, Stack

pytestmark = [pytest.mark.faults, SQLITE]
PAGES = 6


def _assert_all_failed(flow: Flow, document_id: str, reason: str, attempts: int) -> None:
    flow.wait_for_status(document_id, DocumentStatus.PARTIAL_FAILED)
    pages = flow.pages(document_id)
    assert {page.status for page in pages} == {PageStatus.FAILED}
    assert all(reason in (page.error or "").lower() for page in pages), pages[0].error
    assert len(queries.attempts(flow.context, document_id)) == PAGES * attempts
    assert {page.attempts for page in pages} == {attempts}


# A breaker that stays closed: what is seen here is how attempts end.
@settings(DOCUMENTS__BACKOFF_S="[0.1,0.2]", PROVIDERS__TEST__BREAKER_FAIL_MAX="1000")
def test_provider_that_is_down_is_tried_again_and_then_named(
    stack: Stack, flow: Flow, provider: ProviderServer
) -> None:
    provider.stop()  # the port refuses connections
    stack.start(*FLEET)
    _assert_all_failed(flow, flow.submit(PAGES), "connect", attempts=3)


@settings(PROVIDERS__TEST__API_KEY="wrong")
def test_wrong_key_costs_one_call_a_page(stack: Stack, flow: Flow) -> None:
    stack.start(*FLEET)
    _assert_all_failed(flow, flow.submit(PAGES), "key", attempts=1)
    assert flow.provider.counts == {401: PAGES}


@settings(PROVIDERS__TEST__TIMEOUT_S="1", DOCUMENTS__BACKOFF_S="[0.1]", PROVIDERS__TEST__BREAKER_FAIL_MAX="1000")
def test_model_that_never_stops_is_cut_off(stack: Stack, flow: Flow) -> None:
    flow.provider.script.always = Fault("trickle")
    stack.start(*FLEET)
    _assert_all_failed(flow, flow.submit(PAGES), "timeout", attempts=2)
    assert len(flow.provider.records) == PAGES * 2


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
def test_provider_that_comes_back_loses_no_page(stack: Stack, flow: Flow) -> None:
    flow.provider.push(*[Fault(status=503)] * 4, *[Fault("close")] * 2)
    stack.start(*FLEET)
    document_id = flow.submit(PAGES)
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    assert sum(page.retry_count for page in flow.pages(document_id)) == 6

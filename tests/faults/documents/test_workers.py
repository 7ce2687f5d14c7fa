"""Workers that die while a provider converts their document."""

import pytest

from tests.faults.flow import POSTGRESQL, SQLITE, Flow, settings
from tests.support.stack import FLEET, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults


def _begin(flow: Flow, *workers: str) -> tuple[str, dict[str, int]]:
    """Wait until each of `workers` has pages of a document of 24 pages; return its id and pictures."""
    document_id = flow.submit(24)
    flow.wait_for_calls(6)
    wait_until(lambda: all(flow.held(document_id, f"{name}@") for name in workers), 90, "all workers have pages")
    return document_id, flow.images(document_id)


def test_second_worker_finishes_the_pages_of_a_killed_one(stack: Stack, flow: Flow) -> None:
    stack.start(*FLEET, "ai-2")
    document_id, images = _begin(flow, "ai-1", "ai-2")
    stack["ai-1"].kill()
    lost = flow.held(document_id, "ai-1@")
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images, repeated=lost)


@POSTGRESQL
@settings(SWEEP_INTERVAL_S="5", PRESENCE_TTL_S="15", PRESENCE_INTERVAL_S="3")
def test_pages_of_a_killed_worker_are_claimed_within_30_s_by_default(stack: Stack, flow: Flow) -> None:
    stack.start(*FLEET, "ai-2")
    document_id, images = _begin(flow, "ai-1", "ai-2")
    stack["ai-1"].kill()
    lost = flow.held(document_id, "ai-1@")
    assert lost
    # Ten seconds above the promise, for a busy machine.
    wait_until(lambda: not flow.held(document_id, "ai-1@"), 40, "the killed worker holds no page")
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images, repeated=lost)


@pytest.mark.rotating
def test_document_survives_the_death_of_every_process_at_once(stack: Stack, flow: Flow) -> None:
    stack.start(*FLEET)
    document_id, images = _begin(flow, "ai-1")
    stack.kill_all()
    lost = flow.held(document_id)
    stack.start(*FLEET)
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images, repeated=lost)


@pytest.mark.rotating
@SQLITE
def test_a_restarted_beat_recovers_a_lost_worker(stack: Stack, flow: Flow) -> None:
    stack.start(*FLEET, "ai-2")
    document_id, images = _begin(flow, "ai-1", "ai-2")
    stack["beat-1"].kill()
    stack["ai-1"].kill()
    lost = flow.held(document_id, "ai-1@")
    wait_until(lambda: flow.held(document_id) == lost, 90, "only the pages of the killed worker are left")
    stack.start("beat-1")
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images, repeated=lost)


@POSTGRESQL
def test_two_fleets_share_a_document_and_convert_each_page_once(stack: Stack, flow: Flow) -> None:
    stack.start(*FLEET, "cpu-2", "control-2", "ai-2", "beat-2")
    document_id, images = _begin(flow, "ai-1", "ai-2")
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images)

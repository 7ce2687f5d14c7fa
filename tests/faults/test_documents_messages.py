"""Messages that never came, were lost, or come twice: the rows decide."""

import pytest

from pipeline.documents.launching import lane_leases
from pipeline.documents.routing import VISION
from tests.faults.flow import SQLITE, Flow
from tests.support.stack import FLEET, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults


def test_documents_that_nobody_launched_are_found_by_two_sweepers(stack: Stack, flow: Flow) -> None:
    ids = [flow.submit_without_launch(4, f"{number}.pdf") for number in range(3)]
    stack.start(*FLEET, "beat-2")
    for document_id in ids:
        flow.wait_for_status(document_id)
        flow.assert_exactly_once(document_id)
    assert len(flow.provider.records) == 12
    assert stack["cpu-1"].log_text().count("document.split ") == len(ids)


@pytest.mark.parametrize("leases", ["left", "gone"])
def test_document_whose_lanes_were_lost_gets_lanes_again(stack: Stack, flow: Flow, leases: str) -> None:
    stack.start(*FLEET)
    document_id = flow.submit(20)
    flow.wait_for_calls(6)
    images = flow.images(document_id)
    stack["ai-1"].stop()  # in order: its lanes wait in the queue
    flow.context.redis.delete(VISION)
    if leases == "gone":
        lane_leases(flow.context, document_id, VISION).clear()
    assert not flow.held(document_id)
    stack.start("ai-1")
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images)


@SQLITE
def test_lane_messages_that_wait_are_delivered_twice(stack: Stack, flow: Flow) -> None:
    stack.start(*FLEET)
    document_id = flow.submit(20)
    flow.wait_for_calls(6)
    images = flow.images(document_id)
    messages = wait_until(lambda: flow.context.redis.lrange(VISION, 0, -1), 10, "lanes wait in the queue")
    flow.context.redis.lpush(VISION, *messages)
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images)

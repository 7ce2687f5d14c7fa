"""Missing, lost and repeated messages: the rows decide about the work."""

import json

import pytest

from tests.faults.flow import POSTGRESQL, SQLITE, Flow
from tests.support.stack import FLEET, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults


@pytest.mark.rotating
@POSTGRESQL
def test_two_sweepers_launch_documents_without_messages(stack: Stack, flow: Flow) -> None:
    ids = [flow.submit_without_launch(4, f"{number}.pdf") for number in range(3)]
    stack.start(*FLEET, "beat-2")
    for document_id in ids:
        flow.wait_for_status(document_id)
        flow.assert_exactly_once(document_id)
    assert len(flow.provider.records) == 12
    assert stack["cpu-1"].says("document.split ") == len(ids)


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("database_url", "places"), [("sqlite", "left"), ("postgresql", "gone")], indirect=["database_url"]
)
def test_document_gets_new_lanes_after_their_loss(stack: Stack, flow: Flow, places: str) -> None:
    stack.start(*FLEET)
    document_id, images = _midway(flow)
    stack["ai-1"].stop()  # a document without a fault: its lanes wait in the queue
    flow.context.redis.delete("vision.test")
    if places == "gone":
        flow.context.redis.delete(f"penstock:places:documents:{document_id}")
    assert not flow.held(document_id)
    stack.start("ai-1")
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images)


@pytest.mark.rotating
@SQLITE
def test_waiting_lanes_may_be_delivered_twice(stack: Stack, flow: Flow) -> None:
    stack.start(*FLEET)
    document_id, images = _midway(flow)
    messages = wait_until(lambda: flow.context.redis.lrange("vision.test", 0, -1), 90, "lanes wait in the queue")
    flow.context.redis.lpush("vision.test", *messages)
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images)


@POSTGRESQL
def test_lanes_at_work_may_be_redelivered(stack: Stack, flow: Flow) -> None:
    # As after a lost connection to the broker. There are enough workers to run both deliveries of a lane at once.
    stack.start(*FLEET, "ai-2", "ai-3")
    document_id, images = _midway(flow, pages=40)
    messages = wait_until(lambda: _at_work(flow), 90, "lanes are at work")
    flow.context.redis.rpush("vision.test", *messages)
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images)
    assert {page.attempts for page in flow.pages(document_id)} == {1}, "neither delivery takes a page of the other"


def _midway(flow: Flow, pages: int = 20) -> tuple[str, dict[str, int]]:
    document_id = flow.submit(pages)
    flow.wait_for_calls(6)
    return document_id, flow.images(document_id)


def _at_work(flow: Flow) -> list[str]:
    """Return the unacknowledged messages of lanes."""
    unacked = [json.loads(entry) for entry in flow.context.redis.hvals("unacked")]
    return [json.dumps(message) for message, _, queue in unacked if queue == "vision.test"]

"""Webhooks with real workers: they send events at once, without a sweep, and a killed worker loses nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.flows.documents.states import DocumentStatus
from pipeline.storage.context import Context
from tasks import documents, webhooks
from tests.support.documents import insert_document
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import Receiver, Reply


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_WEBHOOKS__ALLOW_PRIVATE": "true",
        "PENSTOCK_WEBHOOKS__TIMEOUT_S": "60",
        "PENSTOCK_SWEEP_INTERVAL_S": "1",
        "PENSTOCK_PRESENCE_TTL_S": "3",
        "PENSTOCK_PRESENCE_INTERVAL_S": "0.5",
    }


@pytest.fixture
def stack(data_dir: Path, context: Context, settings_env: dict[str, str]) -> Iterator[Stack]:
    settings = context.settings
    with Stack(data_dir, settings.database_url, settings.redis_url, **settings_env) as stack:
        yield stack


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def test_changes_are_sent_at_once_and_another_worker_sends_a_killed_workers_delivery(
    context: Context, receiver: Receiver, stack: Stack
) -> None:
    ids = [insert_document(context, DocumentStatus.PENDING) for _ in range(20)]
    created = webhooks.create(receiver.url(), ["document.paused"])
    stack.start("control-1")  # no beat, so no sweep
    documents.pause(ids[0])
    wait_until(lambda: receiver.received, 90, "the first event arrives")
    for document_id in ids[1:]:
        documents.pause(document_id)
    wait_until(lambda: len({request.id for request in receiver.received}) == 20, 60, "all events have arrived")
    assert len(receiver.received) == 20, "each event arrives once"
    receiver.script(Reply(hang=True))
    webhooks.test(created.endpoint.id)
    wait_until(lambda: len(receiver.received) == 21, 60, "the test is under way")
    stack["control-1"].kill()
    stack.start("control-2", "beat-1")
    wait_until(lambda: len(receiver.received) == 22, 90, "another worker sends it", last=stack.tails)
    assert receiver.received[-1].id == receiver.received[-2].id
    wait_until(lambda: webhooks.deliveries(limit=1)[0].status.value == "delivered", 60, "it is delivered")
    event_types = [request.verified(created.secret)["type"] for request in receiver.received]
    assert event_types == ["document.paused"] * 20 + ["webhook.test"] * 2

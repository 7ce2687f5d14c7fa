"""The messages of a run: one for each queued batch, and none for a closed gate."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from pipeline.engine.claims import Owner
from pipeline.engine.launch import Place, Places
from pipeline.flows.music import plan, recovery, service
from pipeline.flows.music.models import BATCHES
from pipeline.flows.music.plan import BatchLaunch
from pipeline.flows.music.service import StartOptions
from pipeline.flows.music.states import Step
from pipeline.flows.music.work.batch import claim
from pipeline.providers import queue_control
from pipeline.storage.context import Context
from tasks.music import canvas
from tasks.music.canvas import TASKS
from tests.support.music import CHAT, EMBED, Driver, add_songs, batch_rows, calls, change
from tests.support.provider_server import ProviderServer


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def enqueued(driver: Driver, songs: int) -> str:
    """A run whose songs are in batches, before any message is sent."""
    add_songs(driver.context, songs)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    return run_id


def deliver(context: Context, task: Any, batch: BatchLaunch, message: str = "m") -> None:
    """A batch's first message in the hands of this process, with the rest of its chain behind it."""
    _, *rest = canvas._chain(context.settings, batch, [0]).tasks
    task.push_request(id=message, chain=rest[::-1])
    try:
        task.run(batch.id, batch.queue)
    finally:
        task.pop_request()


def test_each_queued_batch_has_one_message_after_any_number_of_launches(driver: Driver) -> None:
    change(driver.context, "queue_concurrency", "2")
    run_id = enqueued(driver, 30)
    assert [TASKS.launch(run_id) for _ in range(4)] == [2, 0, 0, 0]
    assert driver.context.redis.llen("metadata-generation") == 2
    driver.context.redis.flushall()
    assert TASKS.launch(run_id) == 2, "the messages and their marks were lost together"


def test_the_run_s_own_stages_have_one_message_each(driver: Driver) -> None:
    run_id = service.start(driver.context, StartOptions()).id
    assert [TASKS.launch(run_id), TASKS.launch(run_id)] == [1, 0]
    service.stop(driver.context)
    run_id = driver.start()
    assert [TASKS.launch(run_id), TASKS.launch(run_id)] == [1, 0]


def test_messages_for_a_paused_queue_are_sent_when_it_opens(driver: Driver) -> None:
    run_id = enqueued(driver, 10)
    queue_control.pause(driver.context, "metadata-generation", None)
    assert [TASKS.launch(run_id) for _ in range(3)] == [0, 0, 0]
    queue_control.resume(driver.context, "metadata-generation")
    assert [TASKS.launch(run_id), TASKS.launch(run_id)] == [1, 0]


def test_surplus_message_does_not_start_a_batch_that_is_not_queued(driver: Driver) -> None:
    run_id = enqueued(driver, 20)
    (first,) = plan.plan(driver.context, run_id).batches
    (second,) = {row.id for row in batch_rows(driver.context)} - {first.id}
    assert claim(driver.context, second, (Step.METADATA,), Owner("w", "m")) is None
    assert claim(driver.context, first.id, (Step.METADATA,), Owner("w", "m")) is not None


def test_the_chain_s_next_message_counts_as_sent(driver: Driver, provider: ProviderServer) -> None:
    run_id = enqueued(driver, 5)
    (batch,) = plan.plan(driver.context, run_id).batches
    deliver(driver.context, canvas.metadata, batch)
    assert calls(provider, CHAT) == 1
    assert TASKS.launch(run_id) == 0, "Celery sends it when the task has ended"
    (batch,) = plan.plan(driver.context, run_id).batches
    assert batch.step is Step.EMBED
    deliver(driver.context, canvas.embed, batch)
    assert calls(provider, EMBED) == 1
    assert TASKS.launch(run_id) == 0
    driver.context.redis.flushall()
    assert TASKS.launch(run_id) == 1, "the chain is lost with its messages"


def test_a_second_delivery_does_nothing_while_a_live_process_has_the_place(
    driver: Driver, provider: ProviderServer
) -> None:
    run_id = enqueued(driver, 5)
    (batch,) = plan.plan(driver.context, run_id).batches
    place = Place(f"music:batch:{batch.id}", batch.queue)
    assert Places(driver.context.redis).begin(place, "another:1:a/m", 60) == ""
    deliver(driver.context, canvas.metadata, batch)
    assert calls(provider, CHAT) == 0
    assert batch_rows(driver.context)[0].status == "QUEUED"


def test_only_a_run_at_work_is_launched_and_woken_only_for_due_work(driver: Driver) -> None:
    context = driver.context
    run_id = enqueued(driver, 10)
    assert (recovery.runnable(context), recovery.due(context)) == ([run_id], [])
    for after_s, due in ((60, []), (-1, [run_id])):
        at = context.db.now() + timedelta(seconds=after_s)
        context.db.run(lambda session, at=at: session.execute(update(BATCHES).values(next_run_at=at)))
        assert recovery.due(context) == due
    service.pause(context)
    assert (recovery.runnable(context), recovery.due(context)) == ([], [])

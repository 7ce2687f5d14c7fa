"""The status of queues is true: standings, orphans, recovery and dismissal."""

from datetime import timedelta
from unittest.mock import Mock

import pytest
import redis

from pipeline.engine.launch import Places, Wanted
from pipeline.engine.presence import Presence
from pipeline.engine.transaction import Dispatch
from pipeline.flows.knowledge import plan, queries, service
from pipeline.flows.knowledge.live_settings import IO
from pipeline.flows.knowledge.models import BATCHES
from pipeline.flows.knowledge.states import LINE, ItemStatus
from pipeline.flows.knowledge.views import Activity
from pipeline.flows.knowledge.work import admission, batch, content, publication
from pipeline.providers import queue_control
from pipeline.storage.context import Context
from tasks import knowledge
from tests.support.knowledge import add_base, add_batches, add_item
from tests.support.knowledge_driver import WORKER, Driver, long_text


@pytest.fixture
def extra_env() -> dict[str, str]:
    return {"PENSTOCK_PRESENCE_INTERVAL_S": "0.1"}


@pytest.fixture
def alive(context: Context) -> None:
    """Record the presence of a worker."""
    Presence(context.redis).renew(WORKER, 60)


def standing(context: Context, item_id: str) -> Activity:
    return queries.standings(context, [item_id])[item_id].activity


@pytest.mark.usefixtures("alive")
@pytest.mark.both_databases
def test_items_in_line_know_their_place(context: Context, driver: Driver, base: str) -> None:
    ids = driver.note(base, *(f"note {number}" for number in range(5)))
    plan.due_steps(context, [LINE])
    by_item = queries.standings(context, ids)
    assert [by_item[item_id].place for item_id in ids] == [None, None, 1, 2, 3]
    assert {by_item[item_id].activity for item_id in ids[2:]} == {Activity.IN_LINE}
    status = queries.queue(context, base)
    assert (status.queue_size, status.processing_count) == (3, 2)
    assert queries.status(context).per_base_queue == {base: 3}


@pytest.mark.usefixtures("alive")
def test_item_that_is_read_or_embedded_by_a_living_process_is_running(
    context: Context, driver: Driver, base: str
) -> None:
    read, embedded = driver.note(base, "to read", "to embed")
    plan.due_steps(context, [LINE])
    driver.read(embedded)
    context.db.run(lambda session: content._claim(session, context, read, driver.owner()))
    context.db.run(lambda session: batch._claim(session, embedded, "emb", driver.owner()))
    assert {standing(context, read), standing(context, embedded)} == {Activity.RUNNING}
    assert queries.queue(context, base).orphan_item_ids == []
    Presence(context.redis).leave(WORKER)
    assert sorted(queries.queue(context, base).orphan_item_ids) == sorted([read, embedded])


@pytest.mark.usefixtures("alive")
def test_item_whose_message_is_on_its_way_is_queued(context: Context, driver: Driver, base: str) -> None:
    (item_id,) = driver.note(base, "note")
    plan.due_steps(context, [LINE])
    assert standing(context, item_id) is Activity.STALLED
    Places(context.redis).reserve([Wanted(queries.place_of(item_id), IO)])
    assert standing(context, item_id) is Activity.QUEUED
    context.redis.flushdb()
    Presence(context.redis).renew(WORKER, 60)
    assert standing(context, item_id) is Activity.STALLED


@pytest.mark.usefixtures("alive")
def test_item_that_waits_for_a_writer_is_not_an_orphan(context: Context, driver: Driver) -> None:
    now = context.db.now()
    bases = [add_base(context, f"base {number}") for number in range(3)]
    ids = [
        add_item(context, base_id, ItemStatus.EMBEDDING, batches=1, admitted_at=now + timedelta(seconds=at))
        for at, base_id in enumerate(bases)
    ]
    for item_id in ids[:2]:
        assert context.db.run(lambda session, item=item_id: publication._claim(session, item, driver.owner()))
    by_item = queries.standings(context, ids)
    assert [by_item[item_id].activity for item_id in ids] == [Activity.RUNNING, Activity.RUNNING, Activity.WAITING]
    assert by_item[ids[2]].reason
    assert queries.queue(context, bases[2]).orphan_item_ids == []
    assert service.dismiss(context, bases[2], [ids[2]]) == []


@pytest.mark.usefixtures("alive")
@pytest.mark.both_databases
def test_items_before_a_closed_gate_hold_up_their_own_base_alone(context: Context, base: str) -> None:
    now = context.db.now()
    stuck = {"space": "emb:m", "batches": 1, "batches_left": 1, "admitted_at": now}
    for other in (base, add_base(context, "other")):
        for _ in range(2):
            add_item(context, other, ItemStatus.EMBEDDING, **stuck)
        add_item(context, other)
    third = add_item(context, add_base(context, "third"))
    assert admission.admit(context) == []
    queue_control.pause(context, "knowledge.emb", None)
    assert admission.admit(context) == [third]


def test_item_whose_queue_is_paused_waits_and_is_not_an_orphan(context: Context, driver: Driver, base: str) -> None:
    (item_id,) = driver.note(base, "note")
    plan.due_steps(context, [LINE])
    driver.read(item_id)
    queue_control.pause(context, "knowledge.emb", None)
    standing_now = queries.standings(context, [item_id])[item_id]
    assert standing_now.activity is Activity.WAITING
    assert "paused" in standing_now.reason
    assert queries.queue(context, base).orphan_item_ids == []


def test_only_orphans_are_dismissed_as_failed(context: Context, driver: Driver, base: str) -> None:
    orphan, other = driver.note(base, "orphan", "other")
    plan.due_steps(context, [LINE])
    Presence(context.redis).renew(WORKER, 60)
    context.db.run(lambda session: content._claim(session, context, other, driver.owner()))
    assert queries.queue(context, base).orphan_item_ids == [orphan]
    assert knowledge.dismiss(base, [orphan, other, "unknown"]) == [orphan]
    assert (driver.row(orphan).status, driver.row(orphan).error) == (ItemStatus.FAILED, "Interrupted")
    assert driver.status(other) is ItemStatus.PREPROCESSING
    assert driver.row(orphan).admitted_at is None


def test_nothing_is_dismissed_while_redis_is_down(
    context: Context, driver: Driver, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (item_id,) = driver.note(base, "in line")
    monkeypatch.setattr(context.redis, "execute_command", Mock(side_effect=redis.ConnectionError("down")))
    with pytest.raises(redis.ConnectionError):
        knowledge.dismiss(base, [item_id])
    assert driver.status(item_id) is ItemStatus.PENDING


@pytest.mark.both_databases
def test_recovery_frees_the_claims_of_dead_processes(
    context: Context, driver: Driver, base: str, sent: Dispatch
) -> None:
    read, embedded = driver.note(base, "to read", long_text("to embed", 2))
    plan.due_steps(context, [LINE])
    driver.read(embedded)
    context.db.run(lambda session: content._claim(session, context, read, driver.owner()))
    context.db.run(lambda session: batch._claim(session, embedded, "emb", driver.owner()))
    assert sorted(knowledge.recover(base)) == sorted([read, embedded])
    assert (driver.row(read).status, driver.row(read).claim_id) == (ItemStatus.PENDING, None)
    assert {LINE, read, embedded} <= sent.launches["knowledge"].keys()
    driver.work_off()
    assert {driver.status(read), driver.status(embedded)} == {ItemStatus.COMPLETED}


@pytest.mark.usefixtures("alive")
def test_recovery_leaves_the_claims_of_live_processes(context: Context, driver: Driver, base: str) -> None:
    (item_id,) = driver.note(base, "note")
    plan.due_steps(context, [LINE])
    context.db.run(lambda session: content._claim(session, context, item_id, driver.owner()))
    claim = driver.row(item_id).claim_id
    assert knowledge.recover(base) == []
    assert driver.row(item_id).claim_id == claim


def test_batches_of_an_ended_item_are_not_launched(context: Context, driver: Driver, base: str) -> None:
    item_id = add_item(context, base, ItemStatus.FAILED)
    add_batches(context, item_id, 3, "emb")
    past = context.db.now() - timedelta(minutes=1)
    with context.db.transaction() as session:
        session.execute(BATCHES.update().values(next_run_at=past))
    assert plan.due(context) == []
    assert driver.due() == []
    assert plan.next_wait_s(context) is None

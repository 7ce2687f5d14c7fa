"""A message expands a batch by the text model, or directly if the model is down or useless."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from pipeline.engine.traces import AiCall
from pipeline.flows.screenshots import plan, queries, service
from pipeline.flows.screenshots.flow import FLOW
from pipeline.flows.screenshots.frames import renditions
from pipeline.flows.screenshots.graph.models import CALLS, EDGES, NODES
from pipeline.flows.screenshots.live_settings import CONTROL, CPU, SCREENSHOT_TEXT
from pipeline.flows.screenshots.models import BATCHES, SHOTS
from pipeline.flows.screenshots.work import expansion
from pipeline.providers import gates, queue_control
from pipeline.reading.ocr.screen_frames import SeenText
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import Hand, rows_of
from tests.integration.screenshots.work.conftest import NewBatch
from tests.support.commits import lose_answers
from tests.support.provider_server import Fault, ProviderServer
from tests.support.screens import Driver, Models, expand_reply, index_reply, lost_at, paint


@pytest.fixture
def analysed(driver: Driver, new_batch: NewBatch, provider: ProviderServer) -> Callable[[], int]:
    """Makes an analysed batch, and clears the provider's record of requests."""

    def make() -> int:
        batch, _ = new_batch()
        driver.analyse_all(batch)
        provider.records.clear()
        return batch

    return make


def nodes_of(context: Context) -> list[Any]:
    with context.db.read() as session:
        return list(session.execute(select(NODES).order_by(NODES.c.id)))


def row_of(context: Context, batch: int) -> Any:
    (row,) = [row for row in rows_of(context, BATCHES) if row.id == batch]
    return row


def expansions(context: Context) -> list[Any]:
    with context.db.read() as session:
        return list(session.execute(select(CALLS).where(CALLS.c.operation == "text_expand").order_by(CALLS.c.id)))


@pytest.mark.both_databases
def test_model_makes_nodes_and_edges_whose_provenance_names_it(
    context: Context, driver: Driver, analysed: Callable[[], int]
) -> None:
    batch = analysed()
    settled = driver.expand(batch)
    assert (settled.done, settled.requeue) == (True, False)
    event, plan = nodes_of(context)
    assert (event.title, event.kind, event.made_by) == ("Writing a test, expanded", "event", "model")
    assert (plan.title, plan.kind, plan.thread_id) == ("Go on with Writing a test", "plan", event.thread_id)
    with context.db.read() as session:
        assert [tuple(row) for row in session.execute(select(EDGES))] == [(plan.id, event.id, "derived_from")]
    row = row_of(context, batch)
    assert (row.status, row.made_by, row.error) == ("succeeded", "model", None)
    (call,) = expansions(context)
    assert (call.provider, call.model, call.attempt, call.ask) == ("ai", "writer", 1, "first")
    assert json.loads(call.shot_ids) == json.loads(row.shot_ids)
    assert queries.show(context, event.id).provenance[0].model == "writer"


def test_paid_reply_of_a_lost_worker_is_used_by_the_next(
    context: Context, driver: Driver, provider: ProviderServer, analysed: Callable[[], int]
) -> None:
    batch = analysed()
    with lost_at(expansion, "settle"):
        driver.expand(batch)
    assert nodes_of(context) == []
    assert FLOW.free_lost(context, {"w"}) == 1
    assert driver.expand(batch).done
    assert len(provider.records) == 1, "no second call"
    assert [node.made_by for node in nodes_of(context)] == ["model", "model"]
    assert [call.attempt for call in expansions(context)] == [1]


def test_stored_reply_is_used_while_the_text_model_is_down(
    context: Context, driver: Driver, provider: ProviderServer, analysed: Callable[[], int]
) -> None:
    batch = analysed()
    with lost_at(expansion, "settle"):
        driver.expand(batch)
    FLOW.free_lost(context, {"w"})
    assert driver.expand(batch, CONTROL).done
    assert {node.made_by for node in nodes_of(context)} == {"model"}


def test_unusable_reply_is_repaired_once(
    context: Context, driver: Driver, provider: ProviderServer, analysed: Callable[[], int]
) -> None:
    batch = analysed()
    provider.push(Fault(status=200, text='{"nodes": []}'))
    settled = driver.expand(batch)
    assert (settled.done, settled.requeue) == (False, True)
    row = row_of(context, batch)
    assert (row.status, row.attempts, row.ask) == ("pending", 0, "repair")
    assert driver.expand(batch).done
    assert "none is of kind event" in provider.records[1].prompt
    assert [(call.attempt, call.ask) for call in expansions(context)] == [(1, "repair")]
    assert {node.made_by for node in nodes_of(context)} == {"model"}


def test_segments_become_nodes_directly_after_two_unusable_replies(
    context: Context, driver: Driver, provider: ProviderServer, models: Models, analysed: Callable[[], int]
) -> None:
    models.expand = lambda _: "no JSON at all"
    batch = analysed()
    assert driver.expand(batch).requeue
    assert driver.expand(batch).done
    assert len(provider.records) == 2
    (node,) = nodes_of(context)
    assert (node.title, node.made_by) == ("Writing a test", "direct")
    row = row_of(context, batch)
    assert (row.status, row.made_by) == ("succeeded", "direct")
    assert "the reply is not JSON" in row.notes
    assert "No text model expanded these segments" in row.notes


def test_valid_nodes_of_a_reply_that_stays_broken_are_kept(
    context: Context, driver: Driver, models: Models, analysed: Callable[[], int]
) -> None:
    def half(request: dict[str, Any]) -> object:
        reply = expand_reply(request)
        reply["nodes"][1]["kind"] = "poem"
        return reply

    models.expand = half
    batch = analysed()
    driver.expand(batch)
    assert driver.expand(batch).done
    assert [(node.kind, node.made_by) for node in nodes_of(context)] == [("event", "model")]
    assert "used only the valid parts of the text model's reply" in row_of(context, batch).notes


@pytest.mark.usefixtures("others_succeed")
def test_segments_become_nodes_directly_after_three_failures_of_the_text_model(
    context: Context, driver: Driver, provider: ProviderServer, analysed: Callable[[], int]
) -> None:
    batch = analysed()
    provider.push(*[Fault(status=500)] * 3)
    for attempt in (1, 2):
        settled = driver.expand(batch)
        assert (settled.done, settled.requeue, bool(settled.retry_in_s)) == (False, False, True)
        row = row_of(context, batch)
        assert (row.status, row.attempts) == ("failed", attempt)
        assert driver.expand(batch).status is None, "not due"
        driver.skip_waits()
    assert driver.expand(batch).done
    assert len(provider.records) == 3
    row = row_of(context, batch)
    assert (row.status, row.made_by, row.error) == ("succeeded", "direct", None)
    assert "the text model failed: provider 'ai' failed (500)" in row.notes
    assert [node.made_by for node in nodes_of(context)] == ["direct"]
    with context.db.read() as session:
        failed = select(AiCall.status).where(AiCall.operation == "text_expand")
        assert list(session.execute(failed).scalars()) == ["transient"] * 3


def test_refusal_of_the_text_model_costs_one_call(
    context: Context, driver: Driver, provider: ProviderServer, analysed: Callable[[], int]
) -> None:
    batch = analysed()
    provider.push(Fault("refusal"))
    assert driver.expand(batch).done
    assert len(provider.records) == 1
    assert row_of(context, batch).made_by == "direct"


def test_closed_gate_uses_no_attempt_and_the_message_is_requeued(
    context: Context, driver: Driver, provider: ProviderServer, analysed: Callable[[], int]
) -> None:
    batch = analysed()
    queue_control.pause(context, SCREENSHOT_TEXT, None)
    settled = driver.expand(batch)
    assert (settled.done, settled.requeue) == (False, True)
    row = row_of(context, batch)
    assert (row.status, row.attempts, row.claim_id) == ("pending", 0, None)
    assert provider.records == []
    queue_control.resume(context, SCREENSHOT_TEXT)
    assert driver.expand(batch).done


def test_batches_continue_without_the_text_model_while_its_breaker_is_open(
    context: Context, driver: Driver, provider: ProviderServer, new_batch: NewBatch, analysed: Callable[[], int]
) -> None:
    analysed()
    gates.breaker(context, "ai:text").open(600, "by hand")
    batch, _ = new_batch()
    with context.db.transaction() as session:
        session.execute(NODES.delete())
    driver.analyse_all(batch)
    (due,) = plan.next_steps(context, [batch])
    assert due.queue == CONTROL
    provider.records.clear()
    assert driver.expand(batch, due.queue).done
    assert provider.records == []
    assert [node.made_by for node in nodes_of(context)] == ["direct"]
    assert "No text model expanded these segments" in row_of(context, batch).notes


def test_threads_outside_the_history_start_new_threads(
    context: Context, driver: Driver, models: Models, analysed: Callable[[], int]
) -> None:
    def elsewhere(request: dict[str, Any]) -> object:
        reply = expand_reply(request)
        for node in reply["nodes"]:
            node["thread_id"] = "thread_of_the_text_model"
        return reply

    models.index = lambda request: index_reply(request, merge_hint={"decision": "MERGE", "thread_id": "invented"})
    models.expand = elsewhere
    batch = analysed()
    assert driver.expand(batch).done
    event, plan = nodes_of(context)
    assert event.thread_id == plan.thread_id
    assert event.thread_id not in {"invented", "thread_of_the_text_model"}
    notes = row_of(context, batch).notes
    assert "names a thread outside its history" in notes
    assert "names another thread than its segment" in notes


def test_segments_continue_a_thread_of_the_history(
    context: Context, driver: Driver, models: Models, provider: ProviderServer, analysed: Callable[[], int]
) -> None:
    first = analysed()
    driver.expand(first)
    thread = nodes_of(context)[0].thread_id
    told_of: list[str] = []

    def continue_thread(request: dict[str, Any]) -> object:
        told_of.extend(known["thread_id"] for known in request["before"]["threads"])
        return index_reply(request, merge_hint={"decision": "MERGE", "thread_id": told_of[0]})

    models.index = continue_thread
    second = analysed()
    assert set(told_of) == {thread}
    driver.expand(second)
    assert {node.thread_id for node in nodes_of(context)} == {thread}
    with context.db.read() as session:
        assert len(set(session.execute(select(NODES.c.batch_id)).scalars())) == 2


def test_batch_without_segments_is_done_without_a_call(
    context: Context, driver: Driver, models: Models, provider: ProviderServer, analysed: Callable[[], int]
) -> None:
    models.index = lambda request: {"segments": [], "entities": [], "screenshots": []}
    batch = analysed()
    assert driver.expand(batch).done
    assert provider.records == []
    assert nodes_of(context) == []
    assert row_of(context, batch).status == "succeeded"


def shots_of_batch(context: Context, batch: int) -> list[int]:
    with context.db.read() as session:
        return list(session.execute(select(SHOTS.c.id).where(SHOTS.c.batch_id == batch)).scalars())


def _recognise_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip text recognition, which is slow and irrelevant here."""
    monkeypatch.setattr(
        renditions, "lines_of", lambda path, *_, **__: [SeenText(f"text {path.stat().st_ino}", 0.03, 0.03, 0.3, 0.1)]
    )


def test_segments_made_by_rules_are_distinguishable_from_those_of_a_model(
    context: Context, driver: Driver, new_batch: NewBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    _recognise_at_once(monkeypatch)
    batch, _ = new_batch()
    driver.analyse_all(batch, CPU)
    assert driver.expand(batch, CONTROL).done
    assert {node.made_by for node in nodes_of(context)} == {"rules"}
    assert row_of(context, batch).made_by == "rules"


@pytest.mark.both_databases
def test_simultaneous_batches_of_one_window_share_a_thread_by_rules(
    context: Context, driver: Driver, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    _recognise_at_once(monkeypatch)
    ids = [hand.batch(app=app)[0] for app in ("Kill test", "Kill test", "", "")]
    for batch in ids:
        paint(context, shots_of_batch(context, batch))
        driver.analyse_all(batch, CPU)
    for batch in ids:
        assert driver.expand(batch, CONTROL).done
    threads = {batch: {node.thread_id for node in nodes_of(context) if node.batch_id == batch} for batch in ids}
    assert threads[ids[0]] == threads[ids[1]]
    assert len(threads[ids[0]]) == 1
    assert threads[ids[2]].isdisjoint(threads[ids[3]])


def test_deleted_frames_do_not_move_segments_to_other_frames(
    context: Context, driver: Driver, models: Models, provider: ProviderServer, new_batch: NewBatch
) -> None:
    def one_each(request: dict[str, Any]) -> object:
        reply = index_reply(request)
        reply["segments"] = [
            {"screen_ids": [shot["screen_id"]], "event": {"title": f"about {shot['screenshot_id']}"}}
            for shot in request["screenshots"]
        ]
        return reply

    models.index = one_each
    batch, shots = new_batch()
    driver.analyse_all(batch)
    with context.db.transaction() as session:
        session.execute(SHOTS.delete().where(SHOTS.c.id == shots[0]))
    assert driver.expand(batch, CONTROL).done
    shots_by_title = {
        node.title: [shot.id for shot in queries.show(context, node.id).screenshots] for node in nodes_of(context)
    }
    assert shots_by_title == {f"about {shot}": [shot] for shot in shots[1:]}


def test_unexpected_error_with_a_reply_falls_back(
    context: Context, driver: Driver, analysed: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("unforeseen")

    batch = analysed()
    monkeypatch.setattr(expansion, "expanded", broken)
    assert driver.expand(batch).done
    assert row_of(context, batch).made_by == "direct"
    assert "unexpected KeyError" in row_of(context, batch).notes


def test_unexpected_error_makes_a_dead_letter_without_a_claim(
    context: Context, driver: Driver, analysed: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("unforeseen")

    batch = analysed()
    with monkeypatch.context() as patched:
        patched.setattr(expansion, "with_threads", broken)
        settled = driver.expand(batch)
    assert (settled.done, settled.requeue) == (False, False)
    assert "unexpected KeyError" in queries.dead_letters(context)[0].reason
    assert FLOW.holders(context) == set()
    service.replay(context, "batch")
    assert driver.expand(batch).done


@pytest.mark.both_databases
def test_commits_without_an_answer_charge_each_call_once(
    context: Context, driver: Driver, new_batch: NewBatch, provider: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, _ = new_batch()
    for act in (driver.analyse_all, driver.expand):
        with monkeypatch.context() as patch:
            lose_answers(patch, context.db, times=3)
            act(batch)
    while driver.analyse(batch).done:
        pass
    with context.db.read() as session:
        booked = list(session.execute(select(AiCall.call_id)).scalars())
    assert len(booked) == len(set(booked)) == len(provider.records)
    assert len(expansions(context)) == 1

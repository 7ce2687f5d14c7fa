"""A message merges nodes by the text model, or by rules without one or after an unusable reply."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from pipeline.engine.traces import AiCall
from pipeline.flows.screenshots import queries, service
from pipeline.flows.screenshots.flow import FLOW
from pipeline.flows.screenshots.graph.models import CALLS, EMBEDDINGS, LINKS, NODES
from pipeline.flows.screenshots.graph.nodes import Content
from pipeline.flows.screenshots.live_settings import CONTROL, SCREENSHOT_TEXT
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.work import merge
from pipeline.providers import queue_control
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import BEGIN, Draft, Hand, row_of
from tests.support.provider_server import Fault, ProviderServer
from tests.support.screens import Driver, lost_at, prompt_of


def content_of(title: str, *keywords: str) -> Content:
    return Content(title, f"About {title}.", keywords, importance=len(keywords))


@pytest.fixture
def pair(driver: Driver, hand: Hand) -> tuple[int, int]:
    """Make a merged node with a vector, and a newer waiting node of its thread and kind."""
    return add(driver, hand, "apples", "red"), add(driver, hand, "pears", "green", "sweet")


def add(driver: Driver, hand: Hand, title: str, *keywords: str) -> int:
    batch, shots = hand.batch()
    later = BEGIN + timedelta(minutes=batch)
    (node,) = hand.analyse(batch, [Draft("event", content_of(title, *keywords), later, shots[:2], "t")])
    driver.join(alone=True)
    with hand.context.db.transaction() as session:
        session.execute(update(EMBEDDINGS).where(EMBEDDINGS.c.id == node).values(status=WorkStatus.SUCCEEDED))
    return node


def merged_calls(context: Context) -> list[Any]:
    with context.db.read() as session:
        return list(session.execute(select(CALLS).where(CALLS.c.operation == "text_merge")))


def traced(context: Context) -> list[str]:
    with context.db.read() as session:
        return list(session.execute(select(AiCall.status).where(AiCall.operation == "text_merge")).scalars())


def test_messages_change_ends_from_merge_to_merge(driver: Driver, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, shots = hand.batch()
    hand.analyse(batch, [Draft("event", content_of(title), BEGIN, shots) for title in ("a", "b", "c")])
    ends: list[bool] = []

    def claim(*args: Any, newest: bool, **more: Any) -> Any:
        ends.append(newest)
        return claimed(*args, newest=newest, **more)

    claimed = merge.claim
    monkeypatch.setattr(merge, "claim", claim)
    monkeypatch.setattr(merge, "QUANTUM_S", 600.0)
    with merge.MergeMessage(hand.context, CONTROL, driver.owner(), None) as message:
        assert message.run(turn=1).done == 3
    assert ends == [True, False, True, False]


def test_nodes_without_a_target_need_no_model(
    context: Context, driver: Driver, provider: ProviderServer, pair: tuple[int, int]
) -> None:
    first, second = pair
    assert provider.records == []
    assert (queries.show(context, first).node.status, queries.show(context, second).node.status) == (
        "succeeded",
        "pending",
    )


def test_model_writes_the_merged_node_which_names_it_and_waits_for_its_vector(
    context: Context, driver: Driver, provider: ProviderServer, pair: tuple[int, int]
) -> None:
    first, second = pair
    assert driver.join().done == 1
    detail = queries.show(context, second)
    node = detail.node
    assert (node.id, node.title, node.summary) == (first, "apples & pears", "Both.")
    assert node.keywords == ["both", "red", "green", "sweet"]
    version = row_of(context, NODES, first).version
    assert (node.importance, detail.vector, version) == (2, WorkStatus.PENDING, 2)
    assert node.merged_from_ids == [second]
    assert node.event_time == BEGIN + timedelta(minutes=2)
    assert len(queries.show(context, first).screenshots) == 4
    (call,) = merged_calls(context)
    assert (call.node_id, call.model, call.attempt, len(json.loads(call.shot_ids))) == (first, "writer", 1, 4)
    assert queries.show(context, first).provenance[-1].model == "writer"
    assert [prompt_of(record)["new"]["title"] for record in provider.records] == ["pears"]
    assert driver.join().done == 0


def test_rules_merge_without_a_text_model(
    context: Context, driver: Driver, provider: ProviderServer, pair: tuple[int, int]
) -> None:
    first, second = pair
    assert driver.join(CONTROL).done == 1
    node = queries.show(context, second).node
    assert (node.id, node.title, node.summary) == (first, "apples / pears", "About apples.\nAbout pears.")
    assert queries.show(context, first).vector is WorkStatus.PENDING
    assert queries.show(context, first).provenance[-1].method == "rules"
    assert (provider.records, merged_calls(context)) == ([], [])


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=200, text="no JSON"),
        Fault(status=200, text='{"title": ""}'),
        Fault("refusal"),
        Fault(status=500),
        Fault("truncated", text='{"title": "ap'),
    ],
    ids=["no-json", "no-title", "refused", "server-error", "cut-off"],
)
def test_rules_merge_after_failures_of_the_model(
    context: Context, driver: Driver, provider: ProviderServer, pair: tuple[int, int], fault: Fault
) -> None:
    provider.push(fault)
    assert driver.join().done == 1
    assert queries.show(context, pair[0]).node.title == "apples / pears"
    assert queries.show(context, pair[0]).provenance[-1].method == "rules"
    assert merged_calls(context) == []
    assert len(traced(context)) == 1, "the paid call is on record"


def test_closed_gate_sends_the_node_back_without_an_attempt(
    context: Context, driver: Driver, provider: ProviderServer, pair: tuple[int, int]
) -> None:
    queue_control.pause(context, SCREENSHOT_TEXT, None)
    joined = driver.join()
    assert (joined.done, joined.retry_in_s is not None) == (0, True)
    node = queries.show(context, pair[1]).node
    attempts = row_of(context, NODES, pair[1]).attempts
    assert (node.id, node.status, attempts) == (pair[1], "pending", 0)
    assert provider.records == []
    queue_control.resume(context, SCREENSHOT_TEXT)
    driver.skip_waits()
    assert driver.join().done == 1


def test_merge_of_a_lost_worker_is_done_once_by_another(
    context: Context, driver: Driver, provider: ProviderServer, pair: tuple[int, int]
) -> None:
    calls_before = len(provider.records)
    with lost_at(merge, "settle"):
        driver.join()
    assert driver.join().done == 0, "another worker holds it"
    assert FLOW.free_lost(context, {"w"}) == 1
    assert driver.join().done == 1
    assert queries.show(context, pair[0]).node.title == "apples & pears"
    assert len(provider.records) == calls_before + 1, "the answer arrived and is used"
    assert [call.attempt for call in merged_calls(context)] == [1]


@pytest.mark.both_databases
def test_two_simultaneous_messages_for_one_target_lose_no_text(
    context: Context, driver: Driver, provider: ProviderServer, hand: Hand
) -> None:
    provider.script.latency_s = 0.05
    node_ids = [add(driver, hand, f"n{number}") for number in range(6)]
    barrier = threading.Barrier(2)

    def work(_: int) -> int:
        barrier.wait(60)
        done = 0
        while merge.waiting(context):
            done += driver.join().done
        return done

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(work, range(2))) == 5
    with context.db.read() as session:
        (node,) = session.execute(select(NODES).where(NODES.c.merged_into_id.is_(None))).all()
        assert session.execute(select(func.count()).select_from(LINKS).where(LINKS.c.node_id == node.id)).scalar() == 12
    assert node.title == " & ".join(f"n{number}" for number in range(6))
    assert json.loads(node.merged_from_ids) == node_ids[1:]
    assert provider.max_concurrent == 1, "merges into one target are serial, so no call is paid twice"
    assert len(provider.records) == 5


def test_unexpected_error_makes_a_dead_letter_without_a_claim(
    context: Context, driver: Driver, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("unforeseen")

    with monkeypatch.context() as patched:
        patched.setattr(merge, "by_rules", broken)
        assert driver.join(CONTROL).done == 0
    (letter,) = queries.dead_letters(context)
    assert (letter.kind, letter.id, "unexpected TypeError" in letter.reason) == ("merge", pair[1], True)
    assert FLOW.holders(context) == set()
    service.replay(context, "merge")
    assert driver.join().done == 1


def test_unexpected_error_with_a_reply_falls_back(
    context: Context, driver: Driver, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("unforeseen")

    monkeypatch.setattr(merge, "by_model", broken)
    assert driver.join().done == 1
    assert queries.show(context, pair[0]).node.title == "apples / pears"

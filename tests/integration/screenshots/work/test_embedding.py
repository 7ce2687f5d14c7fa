"""A message makes vectors of nodes by a provider, or lexical vectors on this machine."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from pipeline.engine.settled import Settled
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import EMBEDDINGS, NODES
from pipeline.flows.screenshots.live_settings import SCREENSHOT_EMBEDDINGS
from pipeline.flows.screenshots.work import embedding
from pipeline.providers import gates, queue_control
from pipeline.storage import vectors
from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import BEGIN, ME, Hand, draft
from tests.support.provider_server import Fault, ProviderServer, Record
from tests.support.screens import EMBED, Driver


@pytest.fixture
def node_ids(hand: Hand) -> list[int]:
    """Make four nodes that wait for their vectors; the third has an odd text."""
    batch, _ = hand.batch()
    titles = ["apples", "pears", "odd", "plums"]
    return hand.analyse(
        batch, [draft(title, at=BEGIN + timedelta(minutes=n), thread=f"t{n}") for n, title in enumerate(titles)]
    )


def states(context: Context) -> list[str]:
    with context.db.read() as session:
        return list(session.execute(select(EMBEDDINGS.c.status).order_by(EMBEDDINGS.c.id)).scalars())


def test_a_message_without_work_gives_its_slot_back(context: Context, driver: Driver, provider: ProviderServer) -> None:
    gate = gates.gate(context, SCREENSHOT_EMBEDDINGS)
    assert gate.admit("me").granted
    assert gate.inspect().in_flight == 1
    guarded = gates.guarded_call(context, SCREENSHOT_EMBEDDINGS, "me")
    assert embedding.embed(context, ME, guarded) == Settled()
    assert gate.inspect().in_flight == 0
    assert provider.records == []


def models_of(context: Context, node_ids: list[int]) -> list[str]:
    with context.db.read() as session:
        stored = [vectors.get(session, nodes.KIND, node_id) for node_id in node_ids]
    return [vector[0] if vector else "" for vector in stored]


def refuses_odd(record: Record) -> Fault | None:
    texts: Any = record.body["input"]
    return Fault(status=400) if any(text.startswith("odd") for text in texts) else None


class TestLexical:
    """Without a provider."""

    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {}

    def test_this_machine_makes_lexical_vectors(self, context: Context, driver: Driver, node_ids: list[int]) -> None:
        assert embedding.waiting(context)
        done = driver.embed(queue="control")
        assert (done.done, done.requeue) == (4, False)
        assert states(context) == ["succeeded"] * 4
        assert set(models_of(context, node_ids)) == {embedding.space_of(context.settings)}
        assert not embedding.waiting(context)

    def test_a_message_makes_one_portion_and_the_next_continues(
        self, context: Context, driver: Driver, node_ids: list[int]
    ) -> None:
        done = driver.embed(3, queue="control")
        assert (done.done, done.requeue) == (3, True)
        assert driver.embed(done.size, queue="control").done == 1


def test_provider_makes_the_vectors_of_a_portion_in_one_call(
    context: Context, driver: Driver, provider: ProviderServer, node_ids: list[int]
) -> None:
    assert driver.embed().done == 4
    assert [record.path for record in provider.records] == [EMBED]
    assert models_of(context, node_ids) == ["ai:vectors"] * 4
    assert states(context) == ["succeeded"] * 4


def test_text_that_fails_alone_is_a_dead_letter_and_the_others_get_their_vectors(
    context: Context, driver: Driver, provider: ProviderServer, node_ids: list[int]
) -> None:
    provider.script.rule = refuses_odd
    portion = embedding.PORTION
    for _ in range(20):
        settled = driver.embed(portion)
        portion = settled.size
        if not settled.requeue:
            break
    assert states(context) == ["succeeded", "succeeded", "failed_permanent", "succeeded"]
    assert models_of(context, node_ids) == ["ai:vectors", "ai:vectors", "", "ai:vectors"]
    with context.db.read() as session:
        error = session.execute(select(EMBEDDINGS.c.error).where(EMBEDDINGS.c.id == node_ids[2])).scalar_one()
    assert "(400)" in str(error)


def test_one_bad_text_among_many_is_found_with_few_calls(
    context: Context, driver: Driver, provider: ProviderServer, hand: Hand
) -> None:
    batch, _ = hand.batch()
    titles = [*(f"n{number}" for number in range(31)), "odd"]
    hand.analyse(batch, [draft(title) for title in titles])
    provider.script.rule = refuses_odd
    settled = Settled(size=embedding.PORTION, requeue=True)
    while settled.requeue:
        settled = driver.embed(settled.size)
    assert states(context) == [*["succeeded"] * 31, "failed_permanent"]
    assert len(provider.records) <= 12  # one text a call, with all others after each, would take 63


def test_transient_error_leaves_all_nodes_waiting_for_a_retry(
    context: Context, driver: Driver, provider: ProviderServer, node_ids: list[int]
) -> None:
    provider.push(Fault(status=503, headers={"Retry-After": "7"}))
    done = driver.embed()
    assert (done.done, done.requeue, done.retry_in_s) == (0, False, 7)
    assert states(context) == ["pending"] * 4
    assert driver.embed() == Settled(), "the nodes wait"
    driver.skip_waits()
    assert driver.embed().done == 4


def test_closed_gate_costs_no_call(
    context: Context, driver: Driver, provider: ProviderServer, node_ids: list[int]
) -> None:
    queue_control.pause(context, SCREENSHOT_EMBEDDINGS, 60)
    done = driver.embed()
    assert (done.done, done.requeue) == (0, False)
    assert done.retry_in_s
    assert provider.records == []


def test_reply_with_too_few_vectors_stores_none(
    context: Context, driver: Driver, provider: ProviderServer, node_ids: list[int]
) -> None:
    body = {"data": [{"index": 0, "embedding": [1.0, 0.0]}], "model": "vectors", "usage": {}}
    provider.push(Fault(status=200, body=body))
    assert driver.embed().done == 0
    assert states(context) == ["pending"] * 4


@pytest.mark.both_databases
def test_vector_of_a_changed_text_is_discarded(
    context: Context, driver: Driver, provider: ProviderServer, node_ids: list[int]
) -> None:
    def change(record: Record) -> None:
        changed = update(NODES).where(NODES.c.id == node_ids[0]).values(title="cherries", version=2)
        with context.db.transaction() as session:
            session.execute(changed)
            nodes.want_vectors(session, [node_ids[0]])

    provider.script.rule = change
    assert driver.embed().done == 3
    assert states(context) == ["pending", "succeeded", "succeeded", "succeeded"]
    provider.script.rule = None
    assert driver.embed().done == 1
    assert "cherries" in provider.records[1].prompt


@pytest.mark.both_databases
def test_claimed_nodes_are_left_alone_by_other_messages(
    context: Context, driver: Driver, provider: ProviderServer, node_ids: list[int]
) -> None:
    claimed_ids: list[int] = []

    def claim_during_call(_: Record) -> None:
        other = embedding.claim(context, ME)
        claimed_ids.extend(row.id for row in other.rows) if other else None

    provider.script.rule = claim_during_call
    assert driver.embed(3).done == 3
    assert claimed_ids == node_ids[3:], "no vector is paid for twice"


def test_a_provider_that_is_down_uses_no_attempt(
    context: Context, driver: Driver, provider: ProviderServer, node_ids: list[int]
) -> None:
    for _ in range(10):
        provider.push(Fault(status=401))
        assert driver.embed().retry_in_s == embedding.WAIT_S
        driver.skip_waits()
        gates.breaker(context, "ai:embeddings").close()
    assert driver.embed().done == 4, "all together"

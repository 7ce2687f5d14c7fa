"""Several instances: the node on one, the session on another; an instance that dies; one request to all of them."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from tests.integration.nodes.gateway.conftest import Node, Session, Start
from tests.support.gateway import GatewayThread, RawSession
from tests.support.waiting import wait_until


@pytest.fixture
def pair(start: Start) -> tuple[GatewayThread, GatewayThread]:
    return start("a"), start("b")


Pair = tuple[GatewayThread, GatewayThread]


def seen(gateway: GatewayThread, node_id: str) -> None:
    wait_until(lambda: gateway.instance.view.get(node_id) is not None, 60, f"{node_id} is seen")


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["in the inbox", "in a key of its own"])
def test_cross_instance_delivery(pair: Pair, node: Node, session: Session, size: int) -> None:
    """Rule: docs/sources/nodes.md#tests."""
    a, b = pair
    one, asker = node(a), session(b)
    seen(b, "n1")
    picture = bytes(size)
    asker.ask("r", picture, partials=True)
    job = one.job()
    assert job.parts == [picture]
    one.say("job_ack", job)
    one.say("job_started", job)
    one.say("job_partial", job, text="al")
    assert asker.until("job_partial")["text"] == "al"
    one.answer(job, "all", picture)
    got = asker.result()
    assert (got["result"], got.parts) == ({"text": "all"}, [picture])
    wait_until(lambda: not b.instance.dispatch.jobs, 60, "its home has done with it")
    wait_until(lambda: a.do(a.instance.slots.held("n1")) == {}, 60, "its slot is free")


def test_a_slot_that_becomes_free_at_one_instance_serves_who_waits_at_another(
    pair: Pair, node: Node, session: Session
) -> None:
    a, b = pair
    one, here, there = node(a), session(a), session(b)
    seen(b, "n1")
    here.ask()
    job = one.job()
    there.ask(timeout_ms=30_000)
    wait_until(lambda: sum(a.do(a.instance.waiting.pools()).values()) == 1, 60, "it waits")
    one.answer(job)
    one.answer_next("there")
    assert there.result()["result"] == {"text": "there"}


def test_a_busy_node_of_another_instance_is_tried_nevertheless(start: Start, node: Node, session: Session) -> None:
    a = start("a")
    one, here = node(a), session(a)
    here.ask()
    job = one.job()
    wait_until(lambda: _used(a, "n1") == 1, 60, "all see that it is busy")
    b = start("b", node_snapshot={"refresh_interval_ms": 60_000})
    there = session(b)
    one.answer(job)
    here.result()
    wait_until(lambda: not a.do(a.instance.slots.held("n1")), 60, "its slot is free")
    for _ in range(3):
        there.ask(timeout_ms=20_000)
        one.answer_next("there")
        assert there.result()["result"] == {"text": "there"}


def _used(gateway: GatewayThread, node_id: str) -> int:
    return {state.node_id: state.used for state in gateway.do(gateway.instance.snapshots.all())}.get(node_id, 0)


def test_a_job_reaches_its_node_after_redis_lost_the_nodes_owner(start: Start, node: Node, session: Session) -> None:
    a = start("a", owner_ttl_seconds=6)  # the instance renews its ownerships at a third of this time
    one = node(a)
    b = start("b")
    seen(b, "n1")
    asker = session(b)
    a.do(a.instance.store.do("DEL", a.instance.store.keys.node_owner("n1")))
    asker.ask(timeout_ms=60_000)
    assert one.answer_next()["attempt"] == 1
    assert asker.result()["result"] == {"text": "done"}


def test_one_request_fifty_times_to_three_instances_is_one_job(start: Start, node: Node, session: Session) -> None:
    gateways = [start("a"), start("b"), start("c")]
    one = node(gateways[0], slots=8)
    for gateway in gateways:
        seen(gateway, "n1")
    request = uuid4().hex
    sessions = [session(gateways[number % 3]) for number in range(12)]

    def ask(number: int) -> str:
        asker: RawSession = sessions[number % 12]
        asker.ask(request, timeout_ms=30_000)
        return asker.id

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(48)))
    job = one.job()
    assert one.nothing_comes(0.5), "no second job"
    one.answer(job, "one")
    results = Counter(asker.result()["result"]["text"] for asker in sessions)
    assert results == {"one": 12}
    assert job["attempt"] == 1


def test_a_node_that_moves_takes_its_job_along(pair: Pair, node: Node, session: Session) -> None:
    a, b = pair
    one, asker = node(a), session(a)
    asker.ask()
    job = one.job()
    moved = node(b, held=[{"job_id": job["job_id"], "attempt": 1}])
    assert one.until("never").code == 4409
    moved.answer(job)
    got = asker.result()
    assert (got["attempt"], got["result"]) == (1, {"text": "done"})


def test_draining_a_dead_inbox_does_not_kick_clients_that_moved_here(
    gateway: GatewayThread, node: Node, session: Session
) -> None:
    one, asker = node(gateway), session(gateway)
    inbox = gateway.instance.inbox
    gateway.do(inbox.send("a", "kick", {"node_id": "n1"}))
    gateway.do(inbox.send("a", "kick", {"session_id": next(iter(gateway.instance.sessions))}))
    wait_until(lambda: gateway.do(gateway.instance.store.do("XLEN", _inbox(gateway))) == 0, 60, "it was read")
    asker.ask()
    one.answer_next()
    assert asker.result()["result"] == {"text": "done"}


def _inbox(gateway: GatewayThread) -> str:
    return gateway.instance.store.keys.inbox(gateway.instance.instance_id)


def test_an_instance_that_ends_hands_its_sessions_and_nodes_to_others(
    start: Start, node: Node, session: Session, redis_settings: dict[str, Any]
) -> None:
    a = start("a")
    with GatewayThread(a.instance.context, "b", **redis_settings) as b:
        one, asker = node(b), session(b)
        request = asker.ask(timeout_ms=30_000)
        job = one.job()
    assert (one.until("never").code, asker.until("never").code) == (1012, 1012)
    asker = session(a, asker.id)
    asker.ask(request, timeout_ms=30_000)
    one = node(a, held=[{"job_id": job["job_id"], "attempt": 1}])
    one.answer(job, "moved")
    assert asker.result()["result"] == {"text": "moved"}


def test_an_instance_that_receives_the_request_adopts_a_job_of_a_dead_home(
    start: Start, node: Node, session: Session, redis_settings: dict[str, Any]
) -> None:
    a = start("a")
    with GatewayThread(a.instance.context, "b", **redis_settings) as b:
        asker = session(b)
        request = asker.ask(timeout_ms=30_000)
        asker.until("job_accepted")
    asker = session(a, asker.id)
    asker.ask(request, timeout_ms=30_000)
    assert asker.until("job_accepted")["state"] == "CREATED"
    node(a).answer_next("adopted")
    assert asker.result()["result"] == {"text": "adopted"}

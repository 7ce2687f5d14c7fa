"""Several instances: the node on one, the session on another; an instance that dies; one request to all of them."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from pipeline.nodes.state.dlq import dlq_size
from pipeline.nodes.state.inbox import Inbox
from pipeline.nodes.state.snapshots import NodeState, Snapshots
from tests.integration.nodes.gateway.conftest import ConnectNode, ConnectSession, Start
from tests.support.gateway import GatewayThread, RawSession
from tests.support.waiting import wait_until


@pytest.fixture
def pair(start: Start) -> tuple[GatewayThread, GatewayThread]:
    return start("a"), start("b")


Pair = tuple[GatewayThread, GatewayThread]


def seen(gateway: GatewayThread, node_id: str) -> None:
    wait_until(lambda: gateway.instance.view.get(node_id) is not None, 60, f"{node_id} is seen")


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["in the inbox", "in a key of its own"])
def test_cross_instance_delivery(
    pair: Pair, connect_node: ConnectNode, connect_session: ConnectSession, size: int
) -> None:
    """Rule: docs/sources/nodes.md#tests."""
    a, b = pair
    node, asker = connect_node(a), connect_session(b)
    seen(b, "n1")
    picture = bytes(size)
    asker.ask("r", picture, partials=True)
    job = node.job()
    assert job.parts == [picture]
    node.say("job_ack", job)
    node.say("job_started", job)
    node.say("job_partial", job, text="al")
    assert asker.until("job_partial")["text"] == "al"
    node.answer(job, "all", picture)
    got = asker.result()
    assert (got["result"], got.parts) == ({"text": "all"}, [picture])
    wait_until(lambda: not b.instance.dispatch.jobs, 60, "its home has released the job")
    wait_until(lambda: a.do(a.instance.slots.held("n1")) == {}, 60, "the job's slot is free")


def test_a_slot_freed_at_one_instance_serves_a_job_that_waits_at_another(
    pair: Pair, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    a, b = pair
    node, here, there = connect_node(a), connect_session(a), connect_session(b)
    seen(b, "n1")
    here.ask()
    job = node.job()
    there.ask(timeout_ms=30_000)
    wait_until(lambda: sum(a.do(a.instance.waiting.pools()).values()) == 1, 60, "it waits")
    node.answer(job)
    node.answer_next("there")
    assert there.result()["result"] == {"text": "there"}


def test_an_instance_tries_a_node_that_its_stale_view_shows_as_busy(
    start: Start, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    a = start("a")
    node, here = connect_node(a), connect_session(a)
    here.ask()
    job = node.job()
    wait_until(lambda: _used(a, "n1") == 1, 60, "the snapshot shows the node as busy")
    b = start("b", node_snapshot={"refresh_interval_ms": 60_000})
    there = connect_session(b)
    node.answer(job)
    here.result()
    wait_until(lambda: not a.do(a.instance.slots.held("n1")), 60, "the job's slot is free")
    for _ in range(3):
        there.ask(timeout_ms=20_000)
        node.answer_next("there")
        assert there.result()["result"] == {"text": "there"}


def _used(gateway: GatewayThread, node_id: str) -> int:
    return {state.node_id: state.used for state in gateway.do(gateway.instance.snapshots.all())}.get(node_id, 0)


def test_a_job_reaches_its_node_after_redis_lost_the_nodes_owner(
    start: Start, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    a = start("a", owner_ttl_seconds=6)  # the instance renews its ownerships three times within it
    node = connect_node(a)
    b = start("b")
    seen(b, "n1")
    asker = connect_session(b)
    a.do(a.instance.store.do("DEL", a.instance.store.keys.node_owner("n1")))
    asker.ask(timeout_ms=60_000)
    assert node.answer_next()["attempt"] == 1
    assert asker.result()["result"] == {"text": "done"}


def test_one_request_fifty_times_to_three_instances_is_one_job(
    start: Start, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    gateways = [start("a"), start("b"), start("c")]
    node = connect_node(gateways[0], slots=8)
    for gateway in gateways:
        seen(gateway, "n1")
    request = uuid4().hex
    sessions = [connect_session(gateways[number % 3]) for number in range(12)]

    def ask(number: int) -> str:
        asker: RawSession = sessions[number % 12]
        asker.ask(request, timeout_ms=30_000)
        return asker.id

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(48)))
    job = node.job()
    assert node.nothing_comes(0.5), "no second job"
    node.answer(job, "one")
    results = Counter(asker.result()["result"]["text"] for asker in sessions)
    assert results == {"one": 12}
    assert job["attempt"] == 1


def test_a_node_that_moves_takes_its_job_along(
    pair: Pair, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    a, b = pair
    node, asker = connect_node(a), connect_session(a)
    asker.ask()
    job = node.job()
    moved = connect_node(b, held=[{"job_id": job["job_id"], "attempt": 1}])
    assert node.until("never").code == 4409
    moved.answer(job)
    got = asker.result()
    assert (got["attempt"], got["result"]) == (1, {"text": "done"})


def test_draining_a_dead_inbox_does_not_kick_clients_that_moved_here(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    inbox = gateway.instance.inbox
    gateway.do(inbox.send("a", "kick", {"node_id": "n1"}))
    gateway.do(inbox.send("a", "kick", {"session_id": next(iter(gateway.instance.sessions))}))
    wait_until(
        lambda: gateway.do(gateway.instance.store.do("XLEN", _inbox(gateway))) == 0, 60, "the inbox has been read"
    )
    asker.ask()
    node.answer_next()
    assert asker.result()["result"] == {"text": "done"}


def _inbox(gateway: GatewayThread) -> str:
    return gateway.instance.store.keys.inbox(gateway.instance.instance_id)


def test_an_instance_that_ends_hands_its_sessions_and_nodes_to_others(
    start: Start, connect_node: ConnectNode, connect_session: ConnectSession, redis_settings: dict[str, Any]
) -> None:
    a = start("a")
    with GatewayThread(a.instance.context, "b", **redis_settings) as b:
        node, asker = connect_node(b), connect_session(b)
        request = asker.ask(timeout_ms=30_000)
        job = node.job()
    assert (node.until("never").code, asker.until("never").code) == (1012, 1012)
    asker = connect_session(a, asker.id)
    asker.ask(request, timeout_ms=30_000)
    node = connect_node(a, held=[{"job_id": job["job_id"], "attempt": 1}])
    node.answer(job, "moved")
    assert asker.result()["result"] == {"text": "moved"}


def test_an_instance_that_receives_the_request_adopts_a_job_of_a_dead_home(
    start: Start, connect_node: ConnectNode, connect_session: ConnectSession, redis_settings: dict[str, Any]
) -> None:
    a = start("a")
    with GatewayThread(a.instance.context, "b", **redis_settings) as b:
        asker = connect_session(b)
        request = asker.ask(timeout_ms=30_000)
        asker.until("job_accepted")
    asker = connect_session(a, asker.id)
    asker.ask(request, timeout_ms=30_000)
    assert asker.until("job_accepted")["state"] == "CREATED"
    connect_node(a).answer_next("adopted")
    assert asker.result()["result"] == {"text": "adopted"}


def test_dead_letters_and_stale_nodes_are_tended_without_beat(start: Start) -> None:
    tended = {"dlq_scan_interval_ms": 100, "dlq_min_idle_ms": 50, "dlq_max_deliveries": 1}
    gateways = start("a", **tended, node_snapshot={"remove_stale_after_seconds": 1}), start("b", **tended)
    store = gateways[1].instance.store

    async def leave_behind() -> None:
        inbox = Inbox(store, "dead")
        await store.do("ZADD", store.keys.schedulers, "NX", 0, "dead")
        await inbox.open()
        await inbox.send("dead", "assign", {})
        await inbox.read()
        await inbox.reclaim(0)
        snapshots = Snapshots(store)
        await snapshots.put([NodeState("gone", "gone", "t", "dead", slots=1, used=0, offers=(), last_seen_ms=1)])
        await snapshots.remove("gone")

    gateways[1].do(leave_behind())
    wait_until(lambda: gateways[1].do(dlq_size(store)) == 1, 60, "the dead letter is moved")
    wait_until(lambda: not gateways[1].do(store.do("ZCARD", store.keys.nodes_last_seen)), 60, "the node is forgotten")
    assert gateways[1].do(store.do("GET", store.keys.dlq_moved)) == b"1"

"""Jobs finish once although messages between instances are lost, or other events come between two messages."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from pipeline.nodes.gateway import dispatch
from pipeline.nodes.state import requests
from pipeline.nodes.state.inbox import Inbox
from tests.integration.nodes.gateway.conftest import ConnectNode, ConnectSession, Start
from tests.support.gateway import GatewayThread
from tests.support.waiting import wait_until


def loses(gateway: GatewayThread, lost: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Drop this instance's messages of one kind. Return the list of their recipients."""
    inbox, recipients = gateway.instance.inbox, []
    send: Callable[..., Awaitable[bool]] = inbox.send

    async def sent(to: str, kind: str, *rest: Any) -> bool:
        if kind == lost:
            recipients.append(to)
            return True
        return await send(to, kind, *rest)

    monkeypatch.setattr(inbox, "send", sent)
    return recipients


@pytest.fixture
def pair(start: Start) -> tuple[GatewayThread, GatewayThread]:
    return start("a"), start("b")


def sees(gateway: GatewayThread, node_id: str) -> None:
    wait_until(lambda: gateway.instance.view.get(node_id), 60, "the node is seen")


def test_a_result_whose_message_was_lost_reaches_its_session(
    pair: tuple[GatewayThread, GatewayThread],
    connect_node: ConnectNode,
    connect_session: ConnectSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = pair
    node, asker, there = connect_node(a), connect_session(a), connect_session(b)
    lost = loses(a, "result", monkeypatch)
    request = asker.ask(timeout_ms=30_000)
    job = node.job()
    there.ask(request, timeout_ms=30_000)
    there.until("job_accepted")
    node.answer(job)
    assert [asker.result()["result"], there.result()["result"]] == [{"text": "done"}] * 2
    assert lost == ["b"]


def test_a_job_goes_to_another_node_although_the_message_about_the_retry_was_lost(
    pair: tuple[GatewayThread, GatewayThread],
    connect_node: ConnectNode,
    connect_session: ConnectSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = pair
    monkeypatch.setattr(dispatch, "_SYNC_S", 0.2)
    node, asker = connect_node(a), connect_session(b)
    sees(b, "n1")
    lost = loses(a, "again", monkeypatch)
    asker.ask(timeout_ms=30_000)
    node.say("job_result", node.job(), error={"code": "NODE_BUSY"})
    # The gateway may repeat an assignment that the node has not acknowledged.
    node.answer(next(job for job in iter(node.job, None) if job["attempt"] == 2))
    assert asker.result()["result"] == {"text": "done"}
    assert lost == ["b"]


def test_a_job_whose_cancellation_was_lost_frees_its_slot(
    pair: tuple[GatewayThread, GatewayThread],
    connect_node: ConnectNode,
    connect_session: ConnectSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = pair
    node, asker = connect_node(a), connect_session(b)
    sees(b, "n1")
    lost = loses(b, "cancel", monkeypatch)
    request = asker.ask(timeout_ms=30_000)
    job = node.job()
    asker.send({"type": "job_cancel", "request_id": request})
    assert node.until("job_cancel")["job_id"] == job["job_id"]
    wait_until(lambda: not a.instance.nodes["n1"].jobs, 60, "the job's slot is free")
    assert lost == ["a"]


def test_a_node_keeps_the_job_that_it_gets_while_it_registers(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, asker = gateway.instance, connect_session(gateway)
    connect_node(gateway)
    held = at.slots.held

    async def slowly(node_id: str) -> dict[str, int]:
        while not at.nodes[node_id].jobs:
            await asyncio.sleep(0.01)
        return await held(node_id)

    monkeypatch.setattr(at.slots, "held", slowly)
    reconnected = connect_node(gateway)
    asker.ask(timeout_ms=30_000)
    job = reconnected.job()
    assert reconnected.nothing_comes()
    reconnected.answer(job)
    assert (asker.result()["attempt"], job["attempt"]) == (1, 1)


def test_a_request_whose_result_has_expired_is_another_job(
    start: Start, connect_node: ConnectNode, connect_session: ConnectSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = start(result_ttl_ms=1000)
    monkeypatch.setattr(requests, "OUTLIVED_MS", 500)
    node, asker = connect_node(gateway), connect_session(gateway)
    request = asker.ask(timeout_ms=600_000)
    first = node.answer_next()
    asker.result()
    wait_until(lambda: gateway.do(gateway.instance.jobs.get(first["job_id"])) is None, 60, "the result has expired")
    asker.ask(request, timeout_ms=600_000)
    assert node.answer_next()["job_id"] != first["job_id"], "a node would ignore a job that it has done"
    assert asker.result()["result"] == {"text": "done"}


def answers_are_lost(jobs: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lose the answer of the first call of this method of `Jobs`."""
    act, lost = getattr(jobs, name), []

    async def done(*args: Any, **more: Any) -> Any:
        answer = await act(*args, **more)
        if not lost:
            lost.append(name)
            raise RedisConnectionError
        return answer

    monkeypatch.setattr(jobs, name, done)
    return lost


def test_a_job_whose_creation_had_no_answer_runs_when_the_request_is_repeated(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    lost = answers_are_lost(gateway.instance.jobs, "create", monkeypatch)
    request = asker.ask(timeout_ms=30_000)
    assert asker.result()["error"]["code"] == "redis_unavailable"
    asker.ask(request, timeout_ms=30_000)
    node.answer_next()
    assert asker.result()["result"] == {"text": "done"}
    assert lost


def test_an_undelivered_assignment_is_repeated(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_SYNC_S", 0.2)
    nodes, asker = [connect_node(gateway, f"n{number}") for number in range(3)], connect_session(gateway)
    lost = answers_are_lost(gateway.instance.jobs, "dispatch", monkeypatch)
    asker.ask(timeout_ms=30_000)
    assert asker.result()["error"]["code"] == "redis_unavailable"
    wait_until(lambda: any(link.jobs for link in gateway.instance.nodes.values()), 60, "a node has the assignment")
    (link,) = [link for link in gateway.instance.nodes.values() if link.jobs]
    (node,) = [node for node in nodes if node.id == link.id]
    assert node.answer_next()["attempt"] == 1
    wait_until(lambda: not gateway.instance.dispatch.jobs, 60, "the job is done")
    assert lost


def test_messages_from_a_dead_inbox_are_not_sent_back_to_it(gateway: GatewayThread) -> None:
    state, dead = gateway.instance, "dead"

    async def drained() -> int:
        inbox = Inbox(state.store, dead)
        await state.store.do("ZADD", state.store.keys.schedulers, 1, dead)
        await inbox.open()
        await state.instances.nodes.take("n9", dead)
        await state.instances.sessions.take("s9", dead)
        await inbox.send(dead, "assign", {"node_id": "n9", "job_id": "j", "attempt": 1, "timeout_ms": 1000})
        await inbox.send(dead, "result", {"session_id": "s9", "request_key": "t:r", "job_id": "j"})
        await inbox.send(dead, "assign", {"nonsense": 1})
        before = state.store.ops["xadd", "ok"]
        await gateway.instance.mail.drain_the_dead()
        return state.store.ops["xadd", "ok"] - before

    assert gateway.do(drained()) == 0
    remaining = gateway.do(state.store.do("XLEN", state.store.keys.inbox(dead)))
    assert remaining == 1, "only the invalid message remains, to become a dead letter"


def test_lines_for_different_models_take_turns_at_a_node(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway, offers=[{"capability": "text", "models": ["m", "n"]}]), connect_session(gateway)
    many = [asker.ask(timeout_ms=30_000) for _ in range(8)]
    wait_until(lambda: gateway.do(gateway.instance.waiting.pools()) == {"text:m": 7}, 60, "one request has the slot")
    single = asker.ask(model="n", timeout_ms=30_000)
    wait_until(
        lambda: gateway.do(gateway.instance.waiting.pools()) == {"text:m": 7, "text:n": 1}, 60, "the others wait"
    )
    order = []
    for _ in [*many, single]:
        node.answer_next()
        order.append(asker.result()["request_id"])
    assert order.index(single) <= 4, "the single request does not wait for all others"


def test_lines_for_two_models_alternate_at_one_slot(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway, offers=[{"capability": "text", "models": ["m", "n"]}]), connect_session(gateway)
    request_ids = {model: [asker.ask(model=model, timeout_ms=300_000) for _ in range(8)] for model in "mn"}
    # On a cluster, the first request is not always the first to get the slot.
    wait_until(lambda: sorted(gateway.do(gateway.instance.waiting.pools()).values()) == [7, 8], 60, "the others wait")
    order = ""
    for _ in range(14):
        node.answer_next()
        order += "m" if asker.result()["request_id"] in request_ids["m"] else "n"
    assert not {"mmm", "nnn"} & {order[begin : begin + 3] for begin in range(12)}, order

"""A node connects to a scripted gateway, stays connected, and leaves."""

import ssl
from http import HTTPStatus
from pathlib import Path

import pytest

from pipeline.nodes.client.agent import NodeRefused
from pipeline.nodes.client.link import LinkLimits
from pipeline.nodes.protocol import (
    NODE_BUSY,
    Drain,
    Error,
    NodeDrain,
    NodeHeartbeat,
    NodeRegister,
    NodeWelcome,
)
from tests.support.scripted_gateway import (
    DEADLINE_S,
    TOKEN,
    NodeLink,
    RunningAgent,
    ScriptedExecutor,
    ScriptedGateway,
    running_agent,
    scripted_gateway,
)
from tests.support.tls import TlsProxy, certificate
from tests.support.waiting import wait_until

PNG = "image/png"
ASSIGN = (
    '{"type": "job_assign", "job_id": "a", "attempt": 1, "capability": "text", "body": {}, "timeout_ms": 1, '
    '"attachments": [{"size": %d}]}'
)


def test_a_node_registers_and_then_sends_heartbeats(gateway: ScriptedGateway, node: RunningAgent) -> None:
    link = gateway.connection()
    assert (link.path, link.token) == ("/ws/node", f"Bearer {TOKEN}")
    link.welcome(heartbeat_ms=50)
    assert link.registered == NodeRegister(
        node_id="desk", name="Desk", slots=2, software="test", offers=node.agent._offers, held=()
    )
    assert [type(link.next(beats=True)) for _ in range(3)] == [NodeHeartbeat] * 3


@pytest.mark.parametrize(
    "junk",
    [
        ("nonsense",),
        ("[1]",),
        ('{"type": "job_assign", "job_id": "../x"}',),
        ('{"type": "job_cancel", "v": 2}',),
        (b"a frame that nothing announced",),
        (ASSIGN % 2, b"three"),
        (ASSIGN % 2, "two"),
        (ASSIGN % 999_999_999_999,),
    ],
)
def test_junk_of_a_gateway_ends_the_connection_and_not_the_node(
    gateway: ScriptedGateway, link: NodeLink, node: RunningAgent, junk: tuple[str | bytes, ...]
) -> None:
    link.junk(*junk)
    assert link.closed_with()[0] in {4400, 4413, 4426}
    link = gateway.welcome()
    link.assign("b")
    link.expect_start("b")
    assert len([report for report in node.reports if "breaks the protocol" in report]) == 1


def test_a_node_ignores_unknown_types_and_their_frames(link: NodeLink) -> None:
    link.junk('{"type": "moon_phase", "attachments": [{"size": 4}]}', b"full")
    link.received("never-was", 3, taken=False)
    link.assign("a")
    link.expect_start("a")


def test_a_node_tries_the_next_gateway_and_reports_it_once(executor: ScriptedExecutor) -> None:
    with scripted_gateway() as first, scripted_gateway() as second:
        first.refuse_with = HTTPStatus.SERVICE_UNAVAILABLE
        with running_agent(first, second, executor=executor) as node:
            for _ in range(2):
                second.welcome().cut()
            second.connection()
            assert first.has_no_connection()
            assert [report.split(":")[0] for report in node.reports[:2]] == [
                "No connection to ws",
                f"Registered at {second.url}/ws/node (scripted) as desk".split(":")[0],
            ]
            assert sum("503" in report for report in node.reports) <= 3


def test_a_node_leaves_a_gateway_without_a_welcome(gateway: ScriptedGateway, executor: ScriptedExecutor) -> None:
    with running_agent(gateway, executor=executor, limits=LinkLimits(open_s=0.2)):
        assert gateway.connection().closed_with()[0] == 1000
        gateway.welcome()


@pytest.mark.parametrize(
    ("code", "name", "says"),
    [
        (4401, "unauthorized", "does not accept the token"),
        (4409, "replaced", "--id"),
        (4426, "version", "update the older one"),
    ],
)
def test_a_refused_node_does_not_retry(
    gateway: ScriptedGateway, link: NodeLink, node: RunningAgent, code: int, name: str, says: str
) -> None:
    link.say(Error(code="no", message="not you"))
    link.close(code, "no")
    node.wait()
    assert isinstance(node.error, NodeRefused)
    assert node.error.code == name
    assert says in str(node.error)
    assert TOKEN not in str(node.error)
    assert gateway.has_no_connection()


@pytest.mark.parametrize("status", [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN])
def test_a_token_may_be_refused_in_the_handshake(
    gateway: ScriptedGateway, executor: ScriptedExecutor, status: HTTPStatus
) -> None:
    gateway.refuse_with = status
    with running_agent(gateway, executor=executor) as node:
        node.wait()
        assert isinstance(node.error, NodeRefused)


@pytest.mark.parametrize("asked_by", ["itself", "the operator"])
def test_a_draining_node_finishes_its_jobs_before_it_ends(
    gateway: ScriptedGateway, link: NodeLink, node: RunningAgent, executor: ScriptedExecutor, asked_by: str
) -> None:
    link.assign("last", wait=True)
    link.expect_start("last")
    if asked_by == "itself":
        node.drain()
    else:
        link.say(Drain(reason="the rack is moved"))
    link.expect(NodeDrain)
    link.assign("crossed")
    crossed = link.result("crossed").error
    assert crossed is not None
    assert crossed.code == NODE_BUSY
    link.cut()
    link = gateway.welcome()
    link.expect_start("last")
    link.expect(NodeDrain)
    executor.go()
    assert link.result("last", received=False).result is not None
    assert not node.ended
    link.received("last")
    assert link.closed_with()[0] == 1000
    node.wait()
    assert node.error is None
    assert gateway.has_no_connection()


def test_a_certificate_counts_only_if_its_authority_does(
    gateway: ScriptedGateway, executor: ScriptedExecutor, tmp_path: Path
) -> None:
    files = certificate(tmp_path)
    with TlsProxy(files, int(gateway.url.rpartition(":")[2])) as proxy:
        gateway.url = f"wss://127.0.0.1:{proxy.port}"
        with running_agent(gateway, executor=executor) as node:
            wait_until(lambda: node.reports, DEADLINE_S, "the connection was refused")
            assert "its certificate is not trusted: self-signed certificate" in node.reports[0]
        assert gateway.has_no_connection()
        with running_agent(gateway, executor=executor, trust=ssl.create_default_context(cafile=str(files[0]))):
            link = gateway.welcome()
            link.assign("a", (PNG, b"x" * 100_000))
            link.expect_start("a")
            link.result("a")
        assert proxy.encrypted


def test_an_idle_node_ends_at_once_connected_or_not(executor: ScriptedExecutor) -> None:
    with scripted_gateway() as gateway:
        with running_agent(gateway, executor=executor) as node:
            link = gateway.welcome()
            node.drain()
            assert link.closed_with()[0] == 1000
            node.wait()
        gateway.refuse_with = HTTPStatus.SERVICE_UNAVAILABLE
        with running_agent(gateway, executor=executor) as node:
            wait_until(lambda: node.reports, DEADLINE_S, "the connection was refused")
            node.drain()
            node.wait()
            assert node.error is None


def test_jobs_that_outlast_the_grace_are_left(gateway: ScriptedGateway, executor: ScriptedExecutor) -> None:
    with running_agent(gateway, executor=executor, grace_s=0.1) as node:
        link = gateway.welcome()
        link.assign("a", wait=True)
        link.expect_start("a")
        node.drain()
        assert link.closed_with()[0] == 1000
        node.wait()
        assert "1 job and no result left behind" in node.reports[-1]


def test_a_second_welcome_is_ignored(link: NodeLink) -> None:
    link.say(NodeWelcome(instance_id="b", heartbeat_ms=1, max_message_bytes=1, max_attachment_bytes=1))
    link.assign("a", prompt="as before")
    link.expect_start("a")
    assert link.result("a").error is None

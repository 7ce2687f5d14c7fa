"""Tokens and names decide which clients may connect, and junk closes a connection with a reason."""

import json
from contextlib import ExitStack, suppress
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed

from pipeline.engine.errors import UserError
from pipeline.nodes import names, service, tokens
from pipeline.nodes.protocol import CloseCode
from pipeline.nodes.tokens import TokenKind
from pipeline.storage.context import Context
from tests.integration.nodes.gateway.conftest import ConnectNode, ConnectSession, Start, Tokens
from tests.support.gateway import GatewayThread, Got, RawNode, RawSession, Wire, token
from tests.support.waiting import wait_until


@pytest.mark.parametrize("secret", ["", "pstn_wrong", "of the other kind"])
@pytest.mark.parametrize("path", ["/ws/node", "/ws/session"])
def test_a_connection_needs_a_token_of_its_kind(
    gateway: GatewayThread, secrets: Tokens, secret: str, path: str
) -> None:
    other = secrets.session if path == "/ws/node" else secrets.node
    with Wire(gateway.url, path, other if secret == "of the other kind" else secret) as wire:
        end = wire.until("never")
    assert end.code == CloseCode.UNAUTHORIZED
    assert "needs a usable token" in end.reason


def test_a_revoked_token_ends_its_connections(gateway: GatewayThread, context: Context, closing: ExitStack) -> None:
    secret, view = tokens.create(context, "soon revoked", TokenKind.NODE)
    node = closing.enter_context(RawNode(gateway.url, secret))
    tokens.revoke(context, view.id)
    gateway.do(gateway.instance.inbox.send("a", "token_revoked", {"token_id": view.id}))
    assert node.until("never").code == CloseCode.UNAUTHORIZED


def test_a_revoked_token_ends_its_connections_soon_without_a_message(
    gateway: GatewayThread, context: Context, closing: ExitStack
) -> None:
    secret, view = tokens.create(context, "soon revoked", TokenKind.SESSION)
    asker = closing.enter_context(RawSession(gateway.url, secret))
    tokens.revoke(context, view.id)
    gateway.do(gateway.instance._check_tokens())
    assert asker.until("never").code == CloseCode.UNAUTHORIZED


def test_a_token_for_one_node_refuses_another(gateway: GatewayThread, context: Context, closing: ExitStack) -> None:
    secret = token(context, TokenKind.NODE, "only one", node_id="desk")
    assert closing.enter_context(RawNode(gateway.url, secret, "desk")).welcome.type == "welcome"
    assert closing.enter_context(RawNode(gateway.url, secret, "rack")).until("never").code == CloseCode.UNAUTHORIZED


def test_a_token_cannot_take_the_name_of_a_node_connected_with_another_token(
    gateway: GatewayThread, connect_node: ConnectNode, context: Context, closing: ExitStack
) -> None:
    node = connect_node(gateway)
    thief = closing.enter_context(RawNode(gateway.url, token(context, TokenKind.NODE, "thief")))
    assert thief.welcome.type in {"error", f"closed {CloseCode.UNAUTHORIZED}"}
    assert node.nothing_comes()


JUNK: list[tuple[str, Any, CloseCode, str]] = [
    ("not JSON", "{", CloseCode.BAD_MESSAGE, "not JSON"),
    ("not an object", "[]", CloseCode.BAD_MESSAGE, "JSON object with a type"),
    ("deep", "[" * 60_000, CloseCode.BAD_MESSAGE, "not JSON"),
    ("another version", {"type": "node_heartbeat", "v": 2}, CloseCode.VERSION, "v = 1"),
    ("a field that is wrong", {"type": "job_ack", "job_id": "../x", "attempt": 1}, CloseCode.BAD_MESSAGE, "job_id"),
    ("binary", b"\0\1", CloseCode.BAD_MESSAGE, "a binary frame without a message"),
    ("large", json.dumps({"type": "x", "pad": "x" * 70_000}), CloseCode.TOO_LARGE, "over 65536 bytes"),
    (
        "attachments that are too large",
        {"type": "job_result", "job_id": "j", "attempt": 1, "attachments": [{"size": 2**40}]},
        CloseCode.TOO_LARGE,
        "attachments of over",
    ),
    (
        "a second registration",
        {"type": "node_register", "node_id": "n1", "slots": 1, "offers": [{"capability": "text"}]},
        CloseCode.BAD_MESSAGE,
        "already registered",
    ),
]


@pytest.mark.parametrize(("frame", "code", "reason"), [junk[1:] for junk in JUNK], ids=[junk[0] for junk in JUNK])
def test_junk_closes_the_connection_with_a_reason(
    start: Start, connect_node: ConnectNode, frame: str | bytes | dict[str, object], code: CloseCode, reason: str
) -> None:
    node = connect_node(start(max_message_bytes=65_536))
    node.raw(json.dumps(frame) if isinstance(frame, dict) else frame)
    error = node.until("error")
    end = node.until("never")
    assert reason in error["message"]
    assert (end.code, reason in end.reason) == (code, True)


def test_attachments_must_match_their_message(gateway: GatewayThread, connect_node: ConnectNode) -> None:
    node = connect_node(gateway)
    node.send({"type": "job_result", "job_id": "j", "attempt": 1, "result": {}, "attachments": [{"size": 5}]})
    node.raw(b"1234")
    assert node.until("never").code == CloseCode.BAD_MESSAGE


def test_messages_of_a_closed_connection_are_ignored(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    (link,) = gateway.instance.sessions.values()

    async def close_while_it_does_not_read() -> None:
        link.connection._writer.cancel()  # as if the other side did not read
        link.close(CloseCode.UNAUTHORIZED, "revoked")

    gateway.do(close_while_it_does_not_read())
    with suppress(ConnectionClosed):
        asker.ask()
    assert node.nothing_comes()


def test_cancelling_an_unknown_request_leaves_nothing_behind(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    for number in range(5):
        asker.send({"type": "job_cancel", "request_id": f"r{number}"})
    asker.ask("r3")
    node.answer_next()
    assert asker.result()["result"] == {"text": "done"}
    (link,) = gateway.instance.sessions.values()
    assert not link.unwanted


def test_the_text_of_requests_counts_towards_a_session_s_limit(start: Start, connect_session: ConnectSession) -> None:
    gateway = start(max_outbox_bytes=2**20)
    asker = connect_session(gateway)
    for _ in range(3):
        asker.ask(body={"prompt": "x" * 400_000})
    assert asker.result()["error"]["code"] == "too_many_jobs"
    larger = connect_session(gateway)
    larger.ask(body={"prompt": "x" * 1_500_000})
    assert larger.receive().type == "job_accepted", "a session's first request is always accepted"


def test_repeated_steps_of_a_job_are_recorded_once(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask()
    job = node.job()
    before = gateway.instance.store.ops["job_step", "ok"]
    for _ in range(50):
        node.say("job_ack", job)
        node.say("job_started", job)
        node.send({"type": "job_ack", "job_id": "another", "attempt": 1})
    node.answer(job)
    asker.result()
    assert gateway.instance.store.ops["job_step", "ok"] - before <= 2


def test_messages_of_unknown_types_are_ignored(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    node.send({"type": "node_mood", "mood": "good"})
    asker.send({"type": "session_mood"})
    asker.ask(unknown_field=1)
    node.answer_next()
    assert asker.result()["result"] == {"text": "done"}


def test_the_first_message_decides(gateway: GatewayThread, secrets: Tokens) -> None:
    with Wire(gateway.url, "/ws/node", secrets.node) as wire:
        wire.send({"type": "node_heartbeat"})
        assert wire.until("never").reason == "the first message must be node_register"
    with Wire(gateway.url, "/ws/session", secrets.session) as wire:
        wire.send({"type": "session_heartbeat"})
        assert wire.until("never").reason == "the first message must be session_open"


def test_an_unsupported_version_is_refused(gateway: GatewayThread, secrets: Tokens) -> None:
    with Wire(gateway.url, "/ws/session", secrets.session) as wire:
        wire.send({"type": "session_open", "versions": [2, 3], "session_id": "0" * 32})
        assert wire.until("never").code == CloseCode.VERSION


def test_a_slow_session_is_disconnected_and_gets_its_answer_when_it_returns(
    start: Start, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    gateway = start(max_outbox_bytes=2**20, result_ttl_ms=60_000)
    node, asker = connect_node(gateway, slots=64), connect_session(gateway)
    requests = [asker.ask(timeout_ms=60_000) for _ in range(64)]
    jobs = [node.job() for _ in requests]
    for job in jobs:
        node.answer(job, "x", bytes(2**20))
    wait_until(lambda: not gateway.instance.sessions, 60, "the session is disconnected")
    back = connect_session(gateway, asker.id)
    back.ask(requests[-1])
    got: Got = back.result()
    assert got.parts == [bytes(2**20)]


def test_http_endpoints_report_the_status(gateway: GatewayThread, secrets: Tokens) -> None:
    base = gateway.url.replace("ws://", "http://")
    with httpx2.Client(base_url=base, trust_env=False) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json() == {"status": "ok"}
        assert client.get("/status").status_code == 401
        known = client.get("/status", headers={"Authorization": f"Bearer {secrets.session}"}).json()
        assert (known["instance_id"], known["nodes"]) == ("a", 0)
        assert 'penstock_gateway_connections{kind="node"} 0.0' in client.get("/metrics").text


def _disconnect(gateway: GatewayThread, node: RawNode) -> None:
    node.drop()
    wait_until(lambda: node.id not in gateway.instance.nodes, 60, "the gateway sees that the node has gone")


def test_another_token_gets_neither_name_nor_jobs_of_a_disconnected_node(
    gateway: GatewayThread,
    connect_node: ConnectNode,
    connect_session: ConnectSession,
    context: Context,
    closing: ExitStack,
) -> None:
    owner, asker = connect_node(gateway, "vic2"), connect_session(gateway)
    asker.ask(timeout_ms=60_000)
    job = owner.job()
    held = [{"job_id": job["job_id"], "attempt": job["attempt"]}]
    _disconnect(gateway, owner)
    thief = closing.enter_context(RawNode(gateway.url, token(context, TokenKind.NODE, "thief"), "vic2", held=held))
    assert thief.welcome.message == {
        "type": "error",
        "v": 1,
        "code": "unauthorized",
        "message": "the name of this node belongs to another token",
    }
    assert thief.until("never").code == CloseCode.UNAUTHORIZED
    back = connect_node(gateway, "vic2", held=held)
    back.answer(job, "its own")
    assert asker.result()["result"] == {"text": "its own"}


def _is_freed(context: Context, node_id: str) -> bool:
    with suppress(UserError):
        service.free(context, node_id)
    return not names.all_names(context)


@pytest.mark.parametrize("how", ["freed", "its token is revoked", "a token is made for it alone"])
def test_a_name_that_an_operator_frees_goes_to_another_token_without_its_jobs(
    gateway: GatewayThread, connect_session: ConnectSession, context: Context, closing: ExitStack, how: str
) -> None:
    secret, view = tokens.create(context, "first", TokenKind.NODE)
    owner, asker = closing.enter_context(RawNode(gateway.url, secret, "vic2")), connect_session(gateway)
    asker.ask(timeout_ms=60_000)
    job = owner.job()
    if how == "freed":
        with pytest.raises(UserError, match="vic2 is connected"):
            service.free(context, "vic2")
    match how:
        case "freed":
            _disconnect(gateway, owner)
            wait_until(lambda: _is_freed(context, "vic2"), 60, "the name is free")
        case "its token is revoked":
            _disconnect(gateway, owner)
            service.revoke_token(context, view.id)
    only = "vic2" if how == "a token is made for it alone" else ""
    held = [{"job_id": job["job_id"], "attempt": job["attempt"]}]
    heir = closing.enter_context(
        RawNode(gateway.url, token(context, TokenKind.NODE, "second", node_id=only), "vic2", held=held)
    )
    assert heir.welcome.type == "welcome"
    if how == "a token is made for it alone":
        assert owner.until("never").code == CloseCode.REPLACED
    assert heir.until("job_cancel")["job_id"] == job["job_id"], "the first token's job does not pass to the new node"
    heir.answer(job, "forged")
    replies: dict[str, Got] = {}
    while replies.keys() != {"result_received", "job_assign"}:
        reply = heir.until("result_received", "job_assign")
        replies[reply.type] = reply
        assert reply.message, reply
    assert replies["result_received"]["taken"] is False
    heir.answer(replies["job_assign"], "done again")
    got = asker.result()
    assert (got["result"], got["attempt"]) == ({"text": "done again"}, 2)


def test_a_token_has_no_more_node_names_than_an_instance_has_nodes(start: Start, connect_node: ConnectNode) -> None:
    gateway = start(max_nodes=2)
    for name in ("n1", "n2"):
        _disconnect(gateway, connect_node(gateway, name))
    assert connect_node(gateway, "n3").until("never").reason.startswith("this token has 2 names of nodes already")
    assert connect_node(gateway, "n2").welcome.type == "welcome"

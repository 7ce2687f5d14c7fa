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
from tests.integration.nodes.gateway.conftest import Node, Session, Start, Tokens
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
    one = closing.enter_context(RawNode(gateway.url, secret))
    tokens.revoke(context, view.id)
    gateway.do(gateway.instance.inbox.send("a", "token_revoked", {"token_id": view.id}))
    assert one.until("never").code == CloseCode.UNAUTHORIZED


def test_a_token_revoked_while_nobody_is_told_ends_its_connections_soon(
    gateway: GatewayThread, context: Context, closing: ExitStack
) -> None:
    secret, view = tokens.create(context, "soon revoked", TokenKind.SESSION)
    asker = closing.enter_context(RawSession(gateway.url, secret))
    tokens.revoke(context, view.id)
    gateway.do(gateway.instance._check_tokens())
    assert asker.until("never").code == CloseCode.UNAUTHORIZED


def test_a_token_for_one_node_is_for_no_other(gateway: GatewayThread, context: Context, closing: ExitStack) -> None:
    secret = token(context, TokenKind.NODE, "only one", node_id="desk")
    assert closing.enter_context(RawNode(gateway.url, secret, "desk")).welcome.type == "welcome"
    assert closing.enter_context(RawNode(gateway.url, secret, "rack")).until("never").code == CloseCode.UNAUTHORIZED


def test_a_token_cannot_take_the_name_of_a_node_connected_with_another_token(
    gateway: GatewayThread, node: Node, context: Context, closing: ExitStack
) -> None:
    one = node(gateway)
    thief = closing.enter_context(RawNode(gateway.url, token(context, TokenKind.NODE, "thief")))
    assert thief.welcome.type in {"error", f"closed {CloseCode.UNAUTHORIZED}"}
    assert one.nothing_comes()


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
    start: Start, node: Node, frame: str | bytes | dict[str, object], code: CloseCode, reason: str
) -> None:
    one = node(start(max_message_bytes=65_536))
    one.raw(json.dumps(frame) if isinstance(frame, dict) else frame)
    said = one.until("error")
    end = one.until("never")
    assert reason in said["message"]
    assert (end.code, reason in end.reason) == (code, True)


def test_what_follows_a_message_must_be_what_it_announced(gateway: GatewayThread, node: Node) -> None:
    one = node(gateway)
    one.send({"type": "job_result", "job_id": "j", "attempt": 1, "result": {}, "attachments": [{"size": 5}]})
    one.raw(b"1234")
    assert one.until("never").code == CloseCode.BAD_MESSAGE


def test_messages_of_a_closed_connection_are_ignored(gateway: GatewayThread, node: Node, session: Session) -> None:
    one, asker = node(gateway), session(gateway)
    (link,) = gateway.instance.sessions.values()

    async def close_while_it_does_not_read() -> None:
        link.connection._writer.cancel()  # as if it were waiting for the other side to read
        link.close(CloseCode.UNAUTHORIZED, "revoked")

    gateway.do(close_while_it_does_not_read())
    with suppress(ConnectionClosed):
        asker.ask()
    assert one.nothing_comes()


def test_cancelling_what_was_never_asked_leaves_nothing_behind(
    gateway: GatewayThread, node: Node, session: Session
) -> None:
    one, asker = node(gateway), session(gateway)
    for number in range(5):
        asker.send({"type": "job_cancel", "request_id": f"r{number}"})
    asker.ask("r3")
    one.answer_next()
    assert asker.result()["result"] == {"text": "done"}
    (link,) = gateway.instance.sessions.values()
    assert not link.unwanted


def test_the_text_of_requests_counts_as_what_a_session_holds(start: Start, session: Session) -> None:
    gateway = start(max_outbox_bytes=2**20)
    asker = session(gateway)
    for _ in range(3):
        asker.ask(body={"prompt": "x" * 400_000})
    assert asker.result()["error"]["code"] == "too_many_jobs"
    larger = session(gateway)
    larger.ask(body={"prompt": "x" * 1_500_000})
    assert larger.receive().type == "job_accepted", "one is always taken"


def test_repeated_steps_of_a_job_are_recorded_once(gateway: GatewayThread, node: Node, session: Session) -> None:
    one, asker = node(gateway), session(gateway)
    asker.ask()
    job = one.job()
    before = gateway.instance.store.ops["job_step", "ok"]
    for _ in range(50):
        one.say("job_ack", job)
        one.say("job_started", job)
        one.send({"type": "job_ack", "job_id": "another", "attempt": 1})
    one.answer(job)
    asker.result()
    assert gateway.instance.store.ops["job_step", "ok"] - before <= 2


def test_types_that_are_not_known_are_passed_over(gateway: GatewayThread, node: Node, session: Session) -> None:
    one, asker = node(gateway), session(gateway)
    one.send({"type": "node_mood", "mood": "good"})
    asker.send({"type": "session_mood"})
    asker.ask(unknown_field=1)
    one.answer_next()
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
    start: Start, node: Node, session: Session
) -> None:
    gateway = start(max_outbox_bytes=2**20, result_ttl_ms=60_000)
    one, asker = node(gateway, slots=64), session(gateway)
    requests = [asker.ask(timeout_ms=60_000) for _ in range(64)]
    jobs = [one.job() for _ in requests]
    for job in jobs:
        one.answer(job, "x", bytes(2**20))
    wait_until(lambda: not gateway.instance.sessions, 60, "it is sent away")
    back = session(gateway, asker.id)
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


def _left(gateway: GatewayThread, node: RawNode) -> None:
    node.drop()
    wait_until(lambda: node.id not in gateway.instance.nodes, 60, "the gateway sees that the node has gone")


def test_a_node_that_is_gone_keeps_its_name_and_jobs_from_another_token(
    gateway: GatewayThread, node: Node, session: Session, context: Context, closing: ExitStack
) -> None:
    owner, asker = node(gateway, "vic2"), session(gateway)
    asker.ask(timeout_ms=60_000)
    job = owner.job()
    held = [{"job_id": job["job_id"], "attempt": job["attempt"]}]
    _left(gateway, owner)
    thief = closing.enter_context(RawNode(gateway.url, token(context, TokenKind.NODE, "thief"), "vic2", held=held))
    assert thief.welcome.message == {
        "type": "error",
        "v": 1,
        "code": "unauthorized",
        "message": "the name of this node belongs to another token",
    }
    assert thief.until("never").code == CloseCode.UNAUTHORIZED
    back = node(gateway, "vic2", held=held)
    back.answer(job, "its own")
    assert asker.result()["result"] == {"text": "its own"}


def _is_freed(context: Context, node_id: str) -> bool:
    with suppress(UserError):
        service.free(context, node_id)
    return not names.all_names(context)


@pytest.mark.parametrize("how", ["freed", "its token is revoked", "a token is made for it alone"])
def test_a_name_that_an_operator_frees_goes_to_another_token_without_its_jobs(
    gateway: GatewayThread, session: Session, context: Context, closing: ExitStack, how: str
) -> None:
    secret, view = tokens.create(context, "first", TokenKind.NODE)
    owner, asker = closing.enter_context(RawNode(gateway.url, secret, "vic2")), session(gateway)
    asker.ask(timeout_ms=60_000)
    job = owner.job()
    if how == "freed":
        with pytest.raises(UserError, match="vic2 is connected"):
            service.free(context, "vic2")
    match how:
        case "freed":
            _left(gateway, owner)
            wait_until(lambda: _is_freed(context, "vic2"), 60, "nobody is connected by this name")
        case "its token is revoked":
            _left(gateway, owner)
            service.revoke_token(context, view.id)
    only = "vic2" if how == "a token is made for it alone" else ""
    held = [{"job_id": job["job_id"], "attempt": job["attempt"]}]
    heir = closing.enter_context(
        RawNode(gateway.url, token(context, TokenKind.NODE, "second", node_id=only), "vic2", held=held)
    )
    assert heir.welcome.type == "welcome"
    if how == "a token is made for it alone":
        assert owner.until("never").code == CloseCode.REPLACED
    assert heir.until("job_cancel")["job_id"] == job["job_id"], "what the first token's node had is not its own"
    heir.answer(job, "forged")
    said: dict[str, Got] = {}
    while said.keys() != {"result_received", "job_assign"}:
        one = heir.until("result_received", "job_assign")
        said[one.type] = one
        assert one.message, one
    assert said["result_received"]["taken"] is False
    heir.answer(said["job_assign"], "done again")
    got = asker.result()
    assert (got["result"], got["attempt"]) == ({"text": "done again"}, 2)


def test_a_token_takes_no_more_names_than_an_instance_takes_nodes(start: Start, node: Node) -> None:
    gateway = start(max_nodes=2)
    for name in ("n1", "n2"):
        _left(gateway, node(gateway, name))
    assert node(gateway, "n3").until("never").reason.startswith("this token has 2 names of nodes already")
    assert node(gateway, "n2").welcome.type == "welcome"

"""A real gateway follows docs/reference/node-protocol.md with our nodes (JavaScript and Penstock) and scripted ones."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import HEARTBEAT_MS, Server
from gateway_session import Gateway, Session, register
from node_process import Place, Process, running
from relay import Relay, relay
from wire import DEADLINE_S, Message, Peer, file

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 200_000
both = pytest.mark.parametrize("kind", ["javascript", "python"])
"""Penstock's own node has tests of its own. A few tests here show that both nodes follow the same page."""


@pytest.fixture(scope="module")
def gateway(server: Server) -> Gateway:
    tokens = [
        json.loads(server.run("nodes", "tokens", "create", f"test-{kind}", "--kind", kind, "--json"))["secret"]
        for kind in ("node", "session")
    ]
    return Gateway(server.gateway, *tokens)


@pytest.fixture
def session(gateway: Gateway) -> Iterator[Session]:
    with gateway.session() as opened:
        yield opened


@pytest.fixture
def kind() -> str:
    return "javascript"


@pytest.fixture
def node_relay(gateway: Gateway) -> Iterator[Relay]:
    """A relay between node and gateway."""
    with relay(gateway.port) as opened:
        yield opened


@pytest.fixture
def place(gateway: Gateway, node_relay: Relay, tmp_path: Path) -> Place:
    return Place(f"ws://127.0.0.1:{node_relay.port}", gateway.node_token, tmp_path, node_id=tmp_path.name)


@pytest.fixture
def node(kind: str, place: Place) -> Iterator[Process]:
    with running(kind, place) as running_node:
        yield running_node


@pytest.fixture
def raw(gateway: Gateway, tmp_path: Path) -> Iterator[Peer]:
    """A node that the test scripts. Only it offers the model `raw`."""
    with gateway.node(tmp_path.name, "raw") as opened:
        yield opened


def started(session: Session, request_id: str) -> None:
    """Wait until a node has sent a message about a job."""
    assert session.until("job_partial")[-1]["request_id"] == request_id


# Nodes


@both
def test_a_job_there_and_back(session: Session, node: Process, place: Place, kind: str) -> None:
    session.ask(kind, "one two three", partials=True)
    messages = session.until("job_result")
    assert messages[0].type == "job_accepted"
    assert {message["request_id"] for message in messages} == {kind}
    assert (messages[-1]["result"]["text"], messages[-1]["attempt"]) == ("eerht owt eno", 1)
    assert messages[-1]["node_id"] == place.node_id
    pieces = "".join(message["text"] for message in messages[1:-1])
    assert pieces in {"", "eerht owt eno"}
    session.ask(f"look-{kind}", "", file(PNG), file(PNG[:-1]), capability="vision")
    assert session.answer()["result"]["text"] == f"image/png {len(PNG)}\nimage/png {len(PNG) - 1}"


def test_pieces_and_pictures_reach_the_session(session: Session, node: Process) -> None:
    session.ask("pieces", "one two three", partials=True)
    pieces = [message["text"] for message in session.until("job_result") if message.type == "job_partial"]
    assert "".join(pieces) == "eerht owt eno"
    assert len(pieces) > 1
    session.ask("page", "", file(PNG), capability="page", body={"number": 3, "pictures": True})
    page = session.answer()
    assert page["attachments"] == [{"name": "page-3", "media_type": "image/png", "size": len(PNG)}]
    assert page.files == (PNG,)


def test_a_cancelled_job_leaves_its_node_free(session: Session, node: Process) -> None:
    for request_id in ("one", "two"):
        session.ask(request_id, "wait", partials=True)
        started(session, request_id)
    session.ask("three", "cba")
    session.say("job_cancel", request_id="one")
    session.say("job_cancel", request_id="two")
    answer = session.answer()
    assert (answer["request_id"], answer["result"]["text"]) == ("three", "abc")


@both
def test_a_node_continues_its_jobs_after_a_lost_connection(
    session: Session, node: Process, place: Place, node_relay: Relay, kind: str
) -> None:
    assert session.text(f"first-{kind}", "ab") == "ba"  # by now the gateway has dropped the nodes of earlier tests
    session.ask(f"held-{kind}", "wait")
    assert session.text(f"warm-{kind}", "ab") == "ba"  # by now the node has the job that it holds
    node_relay.cut()
    place.go.touch()
    answer = session.answer()
    assert (answer["result"]["text"], answer["attempt"], answer["node_id"]) == ("tiaw", 1, place.node_id)
    assert session.text(f"again-{kind}", "cd") == "dc"


@both
def test_a_draining_node_finishes_its_jobs_and_gets_no_more(
    session: Session, node: Process, place: Place, kind: str
) -> None:
    session.ask(f"last-{kind}", "wait")
    assert session.text(f"before-{kind}", "ab") == "ba"
    node.send_signal(signal.SIGTERM)
    attempts = 0
    while True:
        attempts += 1
        session.ask(f"more-{kind}-{attempts}", "ef", if_no_node="error")
        error = session.answer().fields.get("error")
        if error:
            break
    assert error["code"] == "no_node"
    place.go.touch()
    assert session.answer()["result"]["text"] == "tiaw"
    assert node.wait(DEADLINE_S) == 0


# Repeated and late messages, and nodes that send few


def test_a_repeated_request_is_one_job(gateway: Gateway, raw: Peer) -> None:
    with gateway.session() as first, gateway.session() as two:
        first.ask("same", "abc", model="raw")
        two.ask("same", "abc", model="raw")
        assert first.expect("job_accepted")["job_id"] == two.expect("job_accepted")["job_id"]
        job = raw.expect("job_assign").job
        raw.say("job_result", job_id=job[0], attempt=job[1], result={"text": "cba"})
        assert first.answer()["result"] == two.answer()["result"] == {"text": "cba"}
    with gateway.session() as later:
        assert later.text("same", "abc", model="raw") == "cba"
    assert raw.expect("result_received")["taken"]


def test_a_resumed_session_gets_its_results(gateway: Gateway, raw: Peer) -> None:
    with gateway.session("0" * 32) as session:
        session.ask("lost", "abc", model="raw")
        session.expect("job_accepted")
        job = raw.expect("job_assign").job
    raw.say("job_result", job_id=job[0], attempt=job[1], result={"text": "cba"})
    assert raw.expect("result_received")["taken"]
    with gateway.session("0" * 32) as session:
        assert session.text("lost", "abc", model="raw") == "cba"


def test_a_node_that_acknowledges_nothing_works(session: Session, raw: Peer) -> None:
    session.ask("mute", "abc", file(b"xyz"), model="raw", partials=True, body={"more": 1})
    assigned = raw.expect("job_assign")
    assert assigned["body"] == {"prompt": "abc", "more": 1}
    assert (assigned["capability"], assigned["model"], assigned.files) == ("text", "raw", (b"xyz",))
    assert 0 < assigned["timeout_ms"] <= 30_000
    say_result(raw, assigned)
    assert session.answer()["result"] == {"text": "done"}
    assert raw.expect("result_received").fields.items() >= {"taken": True, "attempt": 1}.items()


def test_late_and_foreign_results_are_rejected(session: Session, raw: Peer) -> None:
    session.ask("late", "abc", model="raw", timeout_ms=300)
    assigned = raw.expect("job_assign")
    assert session.answer()["error"]["code"] == "timed_out"
    assert raw.expect("job_cancel").job == assigned.job
    for job_id, attempt in (assigned.job, (assigned["job_id"], 2), ("never-was", 1)):
        raw.say("job_result", job_id=job_id, attempt=attempt, result={"text": "late"})
        received = raw.expect("result_received")
        assert (received.job, received["taken"]) == ((job_id, attempt), False)
    session.ask("next", "abc", model="raw")
    assigned = raw.expect("job_assign")
    say_result(raw, assigned)
    assert raw.expect("result_received")["taken"]
    say_result(raw, assigned)
    assert raw.expect("result_received").job == assigned.job
    assert session.answer()["result"] == {"text": "done"}


def test_an_attempt_past_its_time_limit_is_followed_by_another(session: Session, raw: Peer) -> None:
    session.ask("slow", "abc", model="raw", attempt_timeout_ms=300)
    first = raw.expect("job_assign")
    assert (raw.expect("job_cancel").job, first["attempt"]) == (first.job, 1)
    # The gateway avoids the node for a while, then assigns again, since no other node has the model.
    second = raw.expect("job_assign")
    assert second.job == (first["job_id"], 2)
    say_result(raw, first)
    assert not raw.expect("result_received")["taken"]
    say_result(raw, second)
    answer = session.answer()
    assert (answer["attempt"], answer["result"]) == (2, {"text": "done"})


def test_errors_of_nodes_reach_the_session(session: Session, raw: Peer) -> None:
    session.ask("bad", "abc", model="raw")
    assigned = raw.expect("job_assign")
    error = {"code": "bad_picture", "message": "not a picture", "kind": "permanent"}
    raw.say("job_result", job_id=assigned["job_id"], attempt=1, error=error)
    assert session.answer()["error"] == error
    session.ask("bad", "abc", model="raw")  # the gateway does not store errors
    assert raw.until("job_assign")[-1]["job_id"] != assigned["job_id"]


def test_the_gateway_ignores_unknown_messages(session: Session, raw: Peer) -> None:
    raw.say("moon_phase", file(b"full"), file(b""), phase={"deep": [1]})
    session.say("moon_phase", file(b"new"), phase=[])
    session.ask("known", "abc", model="raw", colour="blue")
    assigned = raw.expect("job_assign")
    raw.say("job_ack", job_id=assigned["job_id"], attempt=1, mood="good")
    say_result(raw, assigned)
    assert session.answer()["result"] == {"text": "done"}


def say_result(raw: Peer, assigned: Message) -> None:
    raw.say("job_result", job_id=assigned["job_id"], attempt=assigned["attempt"], result={"text": "done"})


def test_held_jobs_that_are_not_the_node_s_are_cancelled(gateway: Gateway) -> None:
    with gateway.connected("/ws/node", gateway.node_token) as peer:
        register(peer, "holder", "held", held=[{"job_id": "long-gone", "attempt": 3}])
        assert peer.expect("welcome")["heartbeat_ms"] == HEARTBEAT_MS
        assert peer.expect("job_cancel").job == ("long-gone", 3)


# Ends of connections


def test_a_second_connection_of_a_node_replaces_the_first(gateway: Gateway, raw: Peer, tmp_path: Path) -> None:
    with gateway.node(tmp_path.name, "raw"):
        assert raw.close_code() == 4409


def test_a_node_without_heartbeats_is_disconnected(gateway: Gateway) -> None:
    with gateway.connected("/ws/node", gateway.node_token) as peer:
        register(peer, "silent", "none")
        assert peer.close_code() == 4408


@pytest.mark.parametrize("path", ["/ws/node", "/ws/session"])
def test_other_tokens_are_refused(gateway: Gateway, path: str) -> None:
    other = gateway.session_token if path == "/ws/node" else gateway.node_token
    for token in (other, "pstn_unknown", other[:-1]):
        with gateway.connected(path, token) as peer:
            assert peer.close_code() == 4401


JUNK = {
    "not JSON": ("{", 4400),
    "a list": ("[1]", 4400),
    "without a type": ('{"v": 1}', 4400),
    "another version": ('{"v": 2, "type": "node_heartbeat"}', 4426),
    "a field of a wrong kind": ('{"type": "job_ack", "job_id": ["a"], "attempt": 1}', 4400),
    "an id of odd characters": ('{"type": "job_ack", "job_id": "a b", "attempt": 1}', 4400),
    "bytes without an announcement": (b"bytes", 4400),
    "a second registration": (
        '{"type": "node_register", "node_id": "a", "slots": 1, "offers": [{"capability": "text"}]}',
        4400,
    ),
    "attachments of over the limit": (
        '{"type": "job_result", "job_id": "a", "attempt": 1, "attachments": [{"size": 999999999}]}',
        4413,
    ),
}


@pytest.mark.parametrize(("frame", "code"), JUNK.values(), ids=JUNK)
def test_junk_closes_the_connection_with_a_reason(gateway: Gateway, frame: str | bytes, code: int) -> None:
    with gateway.node("junk", "none") as peer:
        peer.connection.send(frame)
        error = peer.expect("error")
        assert error["code"]
        assert error["message"]
        assert peer.close_code() == code
        assert peer.connection.close_reason


def test_attachments_are_as_announced(gateway: Gateway, raw: Peer) -> None:
    facts, _ = file(b"12345")
    raw.say("job_result", (facts, b"1234"), job_id="a", attempt=1, result={})
    assert raw.until("error")[-1]["code"]
    assert raw.close_code() == 4400


@pytest.mark.parametrize(("first", "code"), [("node_heartbeat", 4400), ("node_register", 4426)])
def test_the_first_message_is_a_registration_in_a_supported_version(gateway: Gateway, first: str, code: int) -> None:
    with gateway.connected("/ws/node", gateway.node_token) as peer:
        if first == "node_register":
            register(peer, "future", "none", versions=[2, 99])
        else:
            peer.say(first)
        assert peer.close_code() == code


def test_a_session_is_refused_for_the_same_reasons_as_a_node(gateway: Gateway) -> None:
    for first, code in (({"type": "job_cancel", "request_id": "a"}, 4400), ({"v": 9, "type": "session_open"}, 4426)):
        with gateway.connected("/ws/session", gateway.session_token) as peer:
            peer.connection.send(json.dumps(first))
            assert peer.close_code() == code
    with gateway.session() as session:
        session.ask("x" * 129, "abc")
        assert session.close_code() == 4400

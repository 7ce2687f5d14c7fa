"""Requirements of docs/reference/node-protocol.md for a node, checked by a scripted gateway."""

import signal
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from node_process import Place, Process, running
from scripted_gateway import BEATS, Link, ScriptedGateway, scripted_gateway
from wire import DEADLINE_S, Message, file

both = pytest.mark.parametrize("kind", ["javascript", "python"])
"""Penstock's own node has tests of its own. A few tests here show that both nodes follow the same page."""


@pytest.fixture
def kind() -> str:
    return "javascript"


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with scripted_gateway() as scripted:
        yield scripted


@pytest.fixture
def place(gateway: ScriptedGateway, tmp_path: Path) -> Place:
    return Place(gateway.url, "pstn_secret", tmp_path)


@pytest.fixture
def node(kind: str, place: Place) -> Iterator[Process]:
    with running(kind, place) as running_node:
        yield running_node


@pytest.fixture
def link(gateway: ScriptedGateway, node: Process) -> Link:
    """The first connection of the node, after its welcome."""
    return gateway.welcome()


def result(link: Link) -> Message:
    """Return the next result and skip other messages."""
    return link.until("job_result")[-1]


def test_a_node_registers_and_then_sends_heartbeats(gateway: ScriptedGateway, node: Process) -> None:
    link = gateway.connection()
    assert (link.path, link.token) == ("/ws/node", "Bearer pstn_secret")
    first = link.expect("node_register")
    assert (first["v"], first["versions"], first["node_id"], first["slots"]) == (1, [1], "desk", 2)
    assert {"text", "vision", "page"} <= {offer["capability"] for offer in first["offers"]}
    link.unheeded = frozenset()
    link.say("welcome", instance_id="a", heartbeat_ms=50, max_message_bytes=2**24, max_attachment_bytes=2**24)
    for _ in range(3):
        link.expect("node_heartbeat")


def test_a_job_is_acknowledged_started_and_answered_piece_by_piece(link: Link) -> None:
    link.unheeded = BEATS
    link.assign("job-1", "one two three")
    messages = link.until("job_result")
    assert {message.job for message in messages} == {("job-1", 1)}
    assert [message.type for message in messages[:2]] == ["job_ack", "job_started"]
    assert {message.type for message in messages[2:-1]} == {"job_partial"}
    assert "".join(message["text"] for message in messages[2:-1]) == "eerht owt eno"
    assert messages[-1]["result"]["text"] == "eerht owt eno"
    assert messages[-1]["result"]["usage"] == {"input_tokens": 13, "output_tokens": 13}


def test_attachments_keep_their_order_both_ways(link: Link) -> None:
    link.assign("look", "", file(b"x" * 70_000), file(b"", "image/webp"), file(b"y"), capability="vision")
    assert result(link)["result"]["text"] == "image/png 70000\nimage/webp 0\nimage/png 1"
    link.assign("page", "", file(b"z" * 70_000), capability="page", number=3, pictures=True)
    page = result(link)
    assert page["attachments"] == [{"name": "page-3", "media_type": "image/png", "size": 70_000}]
    assert page.files == (b"z" * 70_000,)


def test_a_job_beyond_its_slots_waits_its_turn(link: Link, place: Place) -> None:
    for job_id in "abc":
        link.assign(job_id, "wait")
    messages = [link.next() for _ in range(5)]
    assert {message.job[0] for message in messages if message.type == "job_ack"} == {"a", "b", "c"}
    assert {message.job[0] for message in messages if message.type == "job_started"} == {"a", "b"}
    place.go.touch()
    assert {result(link).job[0] for _ in range(3)} == {"a", "b", "c"}


@both
def test_a_repeated_assignment_runs_once(link: Link, place: Place) -> None:
    link.assign("twice", "wait", attempt=2)
    link.until("job_started")
    link.assign("twice", "wait", attempt=2)
    assert [link.next().type, link.next().type] == ["job_ack", "job_started"]
    link.assign("twice", "wait, you old one", attempt=1)
    place.go.touch()
    first = link.next()
    assert (first.type, first.job) == ("job_result", ("twice", 2))
    link.assign("twice", "wait", attempt=2)
    assert link.next().fields == first.fields
    link.received(first)
    link.assign("twice", "wait", attempt=2)
    link.assign("next", "other")
    assert {message.job[0] for message in link.until("job_result")} == {"next"}


def test_a_higher_attempt_takes_the_place_of_the_lower(link: Link, place: Place) -> None:
    link.assign("again", "wait-1")
    link.until("job_started")
    link.assign("again", "wait-2", attempt=2)
    messages = link.until("job_started")
    place.go.touch()
    messages += link.until("job_result")
    assert {message.job for message in messages} == {("again", 2)}
    assert messages[-1]["result"]["text"] == "2-tiaw"


@both
def test_a_cancelled_job_sends_no_further_message(link: Link, place: Place) -> None:
    for job_id in "ab":
        link.assign(job_id, "wait")
        link.until("job_started")
    link.say("job_cancel", job_id="a", attempt=1, reason="nobody waits")
    link.say("job_cancel", job_id="b", attempt=2, reason="another attempt")
    link.say("job_cancel", job_id="c", attempt=1, reason="never heard of")
    place.go.touch()
    assert result(link).job == ("b", 1)
    link.assign("d", "dcba")
    assert {message.job for message in link.until("job_result")} == {("d", 1)}


def test_a_cancelled_job_makes_room(link: Link) -> None:
    for job_id in "ab":
        link.assign(job_id, "wait")
        link.until("job_started")
    link.assign("c", "at last")
    link.say("job_cancel", job_id="a", attempt=1, reason="nobody waits")
    assert {message.job for message in link.until("job_result")} == {("c", 1)}


def test_a_node_ignores_unknown_messages(link: Link) -> None:
    link.say("moon_phase", file(b"full"), file(b""), phase={"deep": [1]})
    link.say(
        "job_assign",
        job_id="new",
        attempt=1,
        capability="text",
        timeout_ms=1000,
        priority=7,
        model=None,
        body={"prompt": "ab", "mood": "good"},
        attachments=None,
    )
    assert result(link)["result"]["text"] == "ba"
    link.say("result_received", job_id="never-was", attempt=3, taken=False)
    link.assign("older", "cd")
    assert result(link)["result"]["text"] == "dc"


@both
def test_results_are_resent_until_they_are_acknowledged(gateway: ScriptedGateway, link: Link, place: Place) -> None:
    link.assign("kept", "abc")
    first = result(link)
    link.assign("at-work", "wait")
    link.until("job_started")
    link.cut()
    link = gateway.welcome()
    assert link.registered is not None
    held = link.registered["held"]
    assert sorted(held, key=str) == [{"job_id": "at-work", "attempt": 1}, {"job_id": "kept", "attempt": 1}]
    repeated = {(message := link.next()).type: message for _ in range(3)}
    assert repeated.keys() == {"job_ack", "job_started", "job_result"}
    assert repeated["job_result"].fields == first.fields
    link.received(first, acknowledged=False)
    place.go.touch()
    last = result(link)
    assert last.job == ("at-work", 1)
    link.received(last)
    link.end(1012)
    assert not gateway.connection().expect("node_register").fields.get("held")


def test_attachments_of_a_kept_result_are_kept(gateway: ScriptedGateway, link: Link) -> None:
    link.assign("kept", "", file(b"abc"), capability="page", number=1, pictures=True)
    first = result(link)
    link.end(1001)
    repeated = result(gateway.welcome())
    assert (repeated.fields, repeated.files) == (first.fields, (b"abc",))


def test_a_result_that_is_too_large_is_an_error(gateway: ScriptedGateway, node: Process) -> None:
    link = gateway.welcome(max_attachment_bytes=1000, max_message_bytes=70_000)
    link.assign("bytes", "", file(b"x" * 1001), capability="page", number=1, pictures=True)
    link.assign("text", "x" * 69_000 + "é" * 1000)
    for _ in range(2):
        error = result(link)["error"]
        assert (error["code"], error["kind"]) == ("too_large", "permanent")


@pytest.mark.parametrize(("kind", "code"), [("javascript", 4401), ("javascript", 4409), ("javascript", 4426)])
def test_a_refused_node_does_not_retry(gateway: ScriptedGateway, link: Link, node: Process, code: int) -> None:
    link.say("error", code="no", message="you again")
    link.end(code, "no")
    assert node.wait(DEADLINE_S) != 0
    assert gateway.no_connection(0.1)


def test_a_refused_handshake_is_final_only_for_its_token(gateway: ScriptedGateway, kind: str, place: Place) -> None:
    gateway.refuse_with = HTTPStatus.SERVICE_UNAVAILABLE
    with running(kind, place) as node:
        gateway.refusals.get(timeout=DEADLINE_S)
        gateway.refuse_with = HTTPStatus.UNAUTHORIZED
        assert node.wait(DEADLINE_S) != 0


@pytest.mark.parametrize(("kind", "asked_by"), [("javascript", "signal"), ("javascript", "message")])
def test_a_draining_node_finishes_its_jobs_before_it_ends(
    gateway: ScriptedGateway, link: Link, node: Process, place: Place, asked_by: str
) -> None:
    link.assign("last", "wait")
    link.until("job_started")
    if asked_by == "signal":
        node.send_signal(signal.SIGTERM)
    else:
        link.say("drain", reason="the rack is moved")
    link.expect("node_drain")
    link.cut()
    link = gateway.welcome()
    assert {link.next().type for _ in range(3)} == {"job_ack", "job_started", "node_drain"}
    link.assign("crossed", "ab")
    crossed = result(link)
    assert "result" in crossed.fields or crossed["error"]["code"] == "NODE_BUSY"
    link.received(crossed)
    place.go.touch()
    last = result(link)
    assert (crossed.job[0], last.job[0]) == ("crossed", "last")
    assert node.poll() is None
    link.received(last)
    assert link.close_code() == 1000
    assert node.wait(DEADLINE_S) == 0
    assert gateway.no_connection(0.1)

"""What docs/nodes.md asks of a node, asked of one by a gateway that does what each test says."""

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http import HTTPStatus
from pathlib import Path

import pytest
from node_process import Node, Place, javascript, running
from scripted_gateway import Link, ScriptedGateway, scripted_gateway
from wire import DEADLINE_S, Message, file


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with scripted_gateway() as made:
        yield made


@pytest.fixture
def place(gateway: ScriptedGateway, tmp_path: Path) -> Place:
    return Place(gateway.url, "pstn_secret", tmp_path)


@pytest.fixture
def node(place: Place) -> Iterator[Node]:
    with start(place) as made:
        yield made


@pytest.fixture
def link(gateway: ScriptedGateway, node: Node) -> Link:
    """The first connection of the node, which is let in."""
    return gateway.welcome()


def start(place: Place, *more: str) -> AbstractContextManager[Node]:
    return running(javascript(place, *more), place.folder)


def result(link: Link) -> Message:
    """The next result, whatever comes before it."""
    return link.until("job_result")[-1]


def test_it_says_who_it_is_and_then_that_it_is_there(gateway: ScriptedGateway, node: Node) -> None:
    link = gateway.connection()
    assert (link.path, link.token) == ("/ws/node", "Bearer pstn_secret")
    first = link.expect("node_register")
    assert (first["v"], first["versions"], first["node_id"], first["slots"]) == (1, [1], "desk", 2)
    assert "text" in {offer["capability"] for offer in first["offers"]}
    link.unheeded = frozenset()
    link.say("welcome", instance_id="a", heartbeat_ms=50, max_message_bytes=2**24, max_attachment_bytes=2**24)
    for _ in range(3):
        link.expect("node_heartbeat")


def test_a_job_is_acknowledged_started_and_answered_piece_by_piece(link: Link) -> None:
    link.assign("job-1", "one two three")
    said = link.until("job_result")
    assert {message.job for message in said} == {("job-1", 1)}
    assert [message.type for message in said[:2]] == ["job_ack", "job_started"]
    assert {message.type for message in said[2:-1]} == {"job_partial"}
    assert "".join(message["text"] for message in said[2:-1]) == "eerht owt eno"
    assert said[-1]["result"]["text"] == "eerht owt eno"
    assert said[-1]["result"]["usage"] == {"input_tokens": 13, "output_tokens": 13}


def test_attachments_come_and_go_in_their_order(link: Link) -> None:
    link.assign("look", "", file(b"x" * 70_000), file(b"", "image/webp"), file(b"y"), capability="vision")
    assert result(link)["result"]["text"] == "image/png 70000\nimage/webp 0\nimage/png 1"
    link.assign("page", "", file(b"z" * 70_000), capability="page", number=3, pictures=True)
    page = result(link)
    assert page["attachments"] == [{"name": "page-3", "media_type": "image/png", "size": 70_000}]
    assert page.files == (b"z" * 70_000,)


def test_more_jobs_than_slots_wait_their_turn(link: Link, place: Place) -> None:
    for job_id in "abc":
        link.assign(job_id, "wait")
    said = [link.next() for _ in range(5 + 2)]  # three acknowledged, two started, each with a piece
    assert {message.job[0] for message in said if message.type == "job_ack"} == {"a", "b", "c"}
    assert {message.job[0] for message in said if message.type == "job_started"} == {"a", "b"}
    place.go.touch()
    more = [*link.until("job_result"), *link.until("job_result"), *link.until("job_result")]
    assert {message.job[0] for message in more if message.type == "job_started"} == {"c"}


def test_a_job_that_comes_twice_is_done_once(link: Link, place: Place) -> None:
    link.assign("twice", "wait", attempt=2)
    link.until("job_partial")
    link.assign("twice", "wait", attempt=2)
    assert [link.next().type, link.next().type] == ["job_ack", "job_started"]
    link.assign("twice", "wait, you old one", attempt=1)
    place.go.touch()
    first = link.next()
    assert (first.type, first.job) == ("job_result", ("twice", 2))
    link.assign("twice", "wait", attempt=2)
    assert link.next().fields == first.fields
    link.received(first)


def test_a_higher_attempt_takes_the_place_of_the_lower(link: Link, place: Place) -> None:
    link.assign("again", "wait-1")
    link.until("job_partial")
    link.assign("again", "wait-2", attempt=2)
    said = link.until("job_partial")
    place.go.touch()
    said += link.until("job_result")
    assert {message.job for message in said} == {("again", 2)}
    assert said[-1]["result"]["text"] == "2-tiaw"


def test_a_cancelled_job_makes_room_and_says_nothing_more(link: Link) -> None:
    for job_id in "ab":
        link.assign(job_id, "wait")
        link.until("job_partial")
    link.assign("c", "at last")
    link.expect("job_ack")
    link.say("job_cancel", job_id="a", attempt=2, reason="another attempt")
    link.say("job_cancel", job_id="a", attempt=1, reason="nobody waits")
    assert {message.job for message in link.until("job_result")} == {("c", 1)}


def test_what_it_does_not_know_it_passes_over(link: Link) -> None:
    link.say("moon_phase", file(b"full"), file(b""), phase={"deep": [1]})
    link.say("job_assign", job_id="new", attempt=1, capability="text", timeout_ms=1000, priority=7, model=None,
             body={"prompt": "ab", "mood": "good"}, attachments=None)  # fmt: skip
    assert result(link)["result"]["text"] == "ba"
    link.say("result_received", job_id="never-was", attempt=3, taken=False)
    link.assign("older", "cd")
    assert result(link)["result"]["text"] == "dc"


def test_results_are_sent_until_they_are_received(gateway: ScriptedGateway, link: Link, place: Place) -> None:
    link.assign("kept", "", file(b"abc"), capability="page", number=1, pictures=True)
    first = result(link)
    link.assign("at-work", "wait")
    link.until("job_partial")
    link.cut()
    link = gateway.welcome()
    assert link.registered is not None
    held = [{"job_id": "kept", "attempt": 1}, {"job_id": "at-work", "attempt": 1}]
    assert sorted(link.registered["held"], key=held.index) == held
    again = result(link)
    assert (again.fields, again.files) == (first.fields, first.files)
    link.received(again, taken=False)
    place.go.touch()
    last = result(link)
    assert last.job == ("at-work", 1)
    link.received(last)
    link.end(1012)
    assert gateway.connection().expect("node_register").fields.get("held", []) == []


def test_a_result_that_is_too_large_is_an_error(gateway: ScriptedGateway, node: Node) -> None:
    link = gateway.welcome(max_attachment_bytes=1000, max_message_bytes=70_000)
    link.assign("bytes", "", file(b"x" * 1001), capability="page", number=1, pictures=True)
    link.assign("text", "x" * 69_000 + "é" * 1000)
    for _ in range(2):
        error = result(link)["error"]
        assert (error["code"], error["kind"]) == ("too_large", "permanent")


@pytest.mark.parametrize("code", [4401, 4409, 4426])
def test_it_stays_away_when_trying_again_is_no_use(gateway: ScriptedGateway, link: Link, node: Node, code: int) -> None:
    link.say("error", code="no", message="you again")
    link.end(code, "no")
    assert node.process.wait(DEADLINE_S) not in (0, None)
    assert gateway.nobody_comes(0.1)


def test_a_refused_handshake_is_final_only_for_its_token(gateway: ScriptedGateway, place: Place) -> None:
    gateway.refuse_with = HTTPStatus.SERVICE_UNAVAILABLE
    with start(place) as node:
        gateway.refusals.get(timeout=DEADLINE_S)
        gateway.refuse_with = HTTPStatus.UNAUTHORIZED
        assert node.process.wait(DEADLINE_S) != 0


@pytest.mark.parametrize("asked_by", ["signal", "message"])
def test_it_finishes_what_it_has_before_it_ends(
    gateway: ScriptedGateway, link: Link, node: Node, place: Place, asked_by: str
) -> None:
    link.assign("last", "wait")
    link.until("job_partial")
    if asked_by == "signal":
        node.process.send_signal(signal.SIGTERM)
    else:
        link.say("drain", reason="the rack is moved")
    link.expect("node_drain")
    link.cut()
    link = gateway.welcome()
    link.expect("node_drain")
    link.assign("crossed", "ab")
    crossed = result(link)
    link.received(crossed)
    place.go.touch()
    last = result(link)
    assert (crossed.job[0], last.job[0]) == ("crossed", "last")
    assert node.process.poll() is None
    link.received(last)
    assert link.close_code() == 1000
    assert node.process.wait(DEADLINE_S) == 0
    assert gateway.nobody_comes(0.1)

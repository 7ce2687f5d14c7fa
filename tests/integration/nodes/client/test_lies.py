"""A session at a gateway that sends junk, hangs or refuses; and requests that the protocol does not allow."""

import asyncio
import json
import socket
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from pipeline.engine.errors import ErrorKind
from pipeline.nodes.client import Attachment, Session
from pipeline.nodes.protocol import CloseCode, encode
from tests.support.scripted_sessions import (
    FAST,
    ReceivedRequest,
    ScriptedGateway,
    cut,
    echo,
    error_of,
    junk,
    reply,
    run,
    seen,
)
from tests.support.web_server import WebServer, redirect


def test_pieces_of_an_earlier_attempt_are_void() -> None:
    pieces: list[tuple[int, str]] = []

    async def stream(received: ReceivedRequest) -> None:
        await received.accept()
        for attempt, text in ((1, "a"), (1, "b"), (2, "A"), (1, "late"), (2, "B")):
            await received.partial(attempt, text)
        await received.answer({"text": "AB"}, attempt=2)

    with ScriptedGateway(stream) as gateway:
        answer = run(
            gateway.url, lambda session: session.request("text", on_partial=lambda *piece: pieces.append(piece))
        )
    assert pieces == [(1, "a"), (1, "b"), (2, "A"), (2, "B")]
    assert (answer.result, answer.attempt) == ({"text": "AB"}, 2)
    assert gateway.seen.requests[0].request.partials


JUNK = [
    ("not json",),
    ("[1]",),
    (b"nobody announced me",),
    ('{"type": "job_result", "v": 2}',),
    ('{"type": "job_result", "request_id": "r"}',),
    ('{"type": "job_result", "request_id": "r", "result": "text"}',),
    ('{"type": "job_result", "request_id": "r", "result": {}, "attachments": [{"size": 5}]}', b"1234"),
    ('{"type": "job_result", "request_id": "r", "result": {}, "attachments": [{"size": 5}]}', "text"),
    ('{"type": "welcome", "instance_id": "i", "max_message_bytes": 1, "max_attachment_bytes": 1, "max_jobs": 1}',),
]


@pytest.mark.parametrize("frames", JUNK)
def test_junk_closes_the_connection_with_a_reason_and_the_next_one_answers(frames: tuple[Any, ...]) -> None:
    with ScriptedGateway(junk(*frames)) as gateway:
        assert run(gateway.url, lambda session: session.request("text", request_id="r", timeout_s=20))
        assert gateway.ids == ["r", "r"]
        first = gateway.seen.requests[0].socket
        gateway.wait_for(lambda: first.close_code in {CloseCode.BAD_MESSAGE, CloseCode.VERSION}, "a code for it")


def test_messages_of_unknown_types_are_ignored_with_their_attachments() -> None:
    with ScriptedGateway() as gateway:

        async def chat(received: ReceivedRequest) -> None:
            late = {"type": "job_result", "request_id": "of nobody", "result": {}, "attachments": [{"size": 1}]}
            await junk('{"type": "news", "attachments": [{}, {}]}', b"1", b"2", json.dumps(late), b"x")(received)
            await echo(received)

        gateway.script.append(chat)
        assert run(gateway.url, lambda session: session.request("text", body={"n": 1})).result["echo"] == {"n": 1}
    assert len(gateway.seen.opens) == 1


def test_a_request_that_breaks_every_connection_fails_alone() -> None:
    async def refuse_one(received: ReceivedRequest) -> None:
        if received.request.request_id == "bad":
            await received.socket.close(CloseCode.BAD_MESSAGE, "not valid")
        else:
            await received.accept()
            held.append(received)

    held: list[ReceivedRequest] = []
    with ScriptedGateway(step=refuse_one) as gateway:

        async def talk(session: Session) -> Any:
            good = asyncio.create_task(session.request("text", request_id="good"))
            await seen(gateway, lambda: held, "the good request is accepted")
            bad = await error_of(session.request("text", request_id="bad"))
            await seen(gateway, lambda: len(held) == 2, "the good request is repeated")
            gateway.do(echo(held[1]))
            await good
            return bad

        bad = run(gateway.url, talk)
    assert (bad.kind, bad.code) == (ErrorKind.TRANSIENT, "refused")
    assert gateway.ids == ["good", "bad", "good"]


def test_a_request_fails_after_its_last_send() -> None:
    with ScriptedGateway(step=cut) as gateway:
        error = run(gateway.url, lambda session: error_of(session.request("text")), replace(FAST, max_sends=3))
    assert error.code == "gateway_unreachable"
    assert len(gateway.ids) == 3


@pytest.mark.parametrize("token", ["", "pstn_wrong", "odd\ntoken"])
def test_a_refused_token_is_a_permanent_error_that_says_what_to_do(token: str) -> None:
    with ScriptedGateway() as gateway:
        error = run(gateway.url, lambda session: error_of(session.request("text")), token=token)
    assert (error.kind, error.code) == (ErrorKind.PERMANENT, "auth")
    assert "penstock nodes tokens" in str(error)
    assert "pstn_wrong" not in str(error)


def test_no_common_version_is_a_permanent_error() -> None:
    async def other_version(socket: ServerConnection) -> None:
        await socket.send(json.dumps({"type": "error", "code": "version", "message": "only 9 is spoken"}))
        await socket.close(CloseCode.VERSION)

    with ScriptedGateway(openings=[other_version]) as gateway:
        error = run(gateway.url, lambda session: error_of(session.request("text")))
    assert (error.kind, error.code) == (ErrorKind.PERMANENT, "version")
    assert "only 9 is spoken" in str(error)


def test_a_session_leaves_a_gateway_that_sends_no_welcome() -> None:
    async def nothing(socket: ServerConnection) -> None:
        pass

    with ScriptedGateway(openings=[nothing]) as gateway:
        run(gateway.url, lambda session: session.request("text"), replace(FAST, open_s=0.2))
    assert len(gateway.seen.opens) == 2


def test_a_gateway_that_does_not_read_is_left_and_another_gets_the_request() -> None:
    async def stop_reading(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await socket.send(encode(gateway.welcome))

    # Larger than the sockets' buffers, so that the session cannot finish sending it.
    big = [(Attachment(size=0), b"x" * 16_000_000)]
    with ScriptedGateway(openings=[stop_reading], max_attachment_bytes=2**25) as gateway:
        limits = replace(FAST, send_s=4)
        answer = run(gateway.url, lambda session: session.request("text", attachments=big), limits)
    assert answer.result["bytes"] == [16_000_000]
    assert len(gateway.seen.opens) == 2


def test_a_node_leaves_a_port_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        limits = replace(FAST, open_s=0.2, patience_s=0.1)
        url = f"ws://127.0.0.1:{deaf.getsockname()[1]}"
        error = run(url, lambda session: error_of(session.request("text", timeout_s=20)), limits)
    assert error.code == "gateway_unreachable"
    assert "in time" in str(error)


def test_missing_attachments_end_the_connection_in_time() -> None:
    head = '{"type": "%s", "request_id": "r", "result": {}, "attachments": [{"size": 5}, {"size": 1}]}'
    for kind in ("job_result", "news"):
        with ScriptedGateway(junk(head % kind, b"12345")) as gateway:
            limits = replace(FAST, parts_s=0.2)
            assert run(gateway.url, lambda session: session.request("text", request_id="r", timeout_s=20), limits)
            assert gateway.ids == ["r", "r"]


@pytest.mark.parametrize(
    "frame",
    [
        '{"type": "job_result", "request_id": "r", "result": {"x": [' + "[]," * 600_000 + "1]}}",
        '{"type": "news", "attachments": [' + "1," * 1000 + "1]}",
    ],
    ids=["objects", "attachments"],
)
def test_a_message_of_very_many_parts_is_not_read(frame: str) -> None:
    with ScriptedGateway(junk(frame)) as gateway:
        assert run(gateway.url, lambda session: session.request("text", request_id="r", timeout_s=20))
        first = gateway.seen.requests[0].socket
        gateway.wait_for(lambda: first.close_code in {CloseCode.BAD_MESSAGE, CloseCode.TOO_LARGE}, "a code for it")


def test_a_redirect_is_not_followed() -> None:
    with WebServer() as elsewhere, WebServer() as gateway:
        gateway.pages["/ws/session"] = redirect(f"http://127.0.0.1:{elsewhere.port}/ws/session")
        url = f"ws://127.0.0.1:{gateway.port}"
        limits = replace(FAST, patience_s=0.1)
        error = run(url, lambda session: error_of(session.request("text", timeout_s=20)), limits)
        assert "the address answered HTTP 302 instead of a WebSocket" in str(error)
        assert elsewhere.connections == 0


def test_too_large_requests_fail_alone() -> None:
    big = [(Attachment(size=0), b"x" * 3000)]
    huge = reply({"text": "t"}, ("a", "x/y", b"y" * 5000))
    with ScriptedGateway(max_attachment_bytes=2000, step=huge) as gateway:

        async def talk(session: Session) -> list[str]:
            errors = [
                await error_of(session.request("text", attachments=big)),  # for the gateway
                await error_of(session.request("text", attachments=big * 2)),  # for the session
                await error_of(session.request("text")),  # its answer
            ]
            return [f"{error.kind} {error.code}" for error in errors]

        limits = replace(FAST, max_bytes=5000, max_attachment_bytes=4000)
        assert run(gateway.url, talk, limits) == ["permanent too_large"] * 3
    assert len(gateway.ids) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"capability": "smell"},
        {"request_id": "no blanks"},
        {"model": "m" * 200},
        {"body": {"o": object()}},
        {"body": {"lone": "\ud800"}},
        {"timeout_s": 1e9},
        {"attachments": [(Attachment(size=0), b"")] * 65},
    ],
)
def test_a_request_that_the_protocol_cannot_express_is_a_permanent_error(wrong: dict[str, Any]) -> None:
    with ScriptedGateway() as gateway:
        error = run(gateway.url, lambda session: error_of(session.request(**({"capability": "text"} | wrong))))
    assert (error.kind, error.code) == (ErrorKind.PERMANENT, "bad_request")
    assert gateway.seen.requests == []

"""A session at a scripted gateway."""

import asyncio
import logging
import os
from dataclasses import replace
from typing import Any

import pytest

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.nodes.client import Attachment, Session, SessionLimits, SessionReply, ask
from pipeline.nodes.protocol import CloseCode
from tests.support.redis_server import free_port
from tests.support.scripted_sessions import (
    FAST,
    TOKEN,
    ReceivedRequest,
    ScriptedGateway,
    close,
    cut,
    echo,
    error_of,
    refuse,
    reply,
    run,
    seen,
    silence,
)


def test_a_request_with_attachments_goes_out_and_the_answer_with_its_own_comes_back() -> None:
    sent: list[str] = []
    with ScriptedGateway(reply({"text": "hi"}, ("a.png", "image/png", b"png"), ("b", "x/y", b""))) as gateway:
        pictures = [(Attachment(name="p", media_type="image/png", size=0), b"12345"), (Attachment(size=0), b"")]

        async def talk(session: Session) -> SessionReply:
            return await session.request(
                "vision",
                "m-1",
                {"prompt": "What?"},
                pictures,
                timeout_s=20,
                request_id="r-1",
                if_no_node="error",
                on_sent=lambda: sent.append("sent"),
            )

        answer = run(gateway.url, talk)
    [received] = gateway.seen.requests
    assert (received.request.capability, received.request.model, received.request.body) == (
        "vision",
        "m-1",
        {"prompt": "What?"},
    )
    assert (received.request.request_id, received.request.if_no_node, received.request.timeout_ms) == (
        "r-1",
        "error",
        20_000,
    )
    assert (received.parts, received.request.attachments[0].size) == ([b"12345", b""], 5)
    assert (answer.result, answer.attempt, answer.node_id, sent) == ({"text": "hi"}, 1, "n", ["sent"])
    assert [(about.name, part) for about, part in answer.attachments] == [("a.png", b"png"), ("b", b"")]


def test_many_requests_share_one_connection_and_each_gets_its_own_answer() -> None:
    held: list[ReceivedRequest] = []

    async def hold(received: ReceivedRequest) -> None:
        held.append(received)
        if len(held) == 50:
            for request in reversed(held):
                await echo(request)

    async def talk(session: Session) -> list[SessionReply]:
        return await asyncio.gather(*(session.request("text", body={"n": n}) for n in range(50)))

    with ScriptedGateway(step=hold) as gateway:
        answers = run(gateway.url, talk)
    assert [answer.result["echo"]["n"] for answer in answers] == list(range(50))
    assert len(gateway.seen.opens) == 1


@pytest.mark.parametrize("end", [cut, close(1001), close(1012), close(4408), close(4429), close(4431), close(1011)])
def test_a_session_repeats_its_request_after_a_lost_connection(end: Any) -> None:
    sent: list[int] = []
    with ScriptedGateway(silence, end) as gateway:

        async def talk(session: Session) -> Any:
            return await asyncio.gather(
                session.request("text", body={"n": 1}, request_id="one", on_sent=lambda: sent.append(1)),
                session.request("text", body={"n": 2}, request_id="two"),
            )

        answers = run(gateway.url, talk)
    assert [answer.result["echo"]["n"] for answer in answers] == [1, 2]
    assert sorted(gateway.ids) == ["one", "one", "two", "two"]
    assert len({opened.session_id for opened in gateway.seen.opens}) == 1
    assert sent == [1]


def test_a_session_that_was_replaced_goes_on_under_another_id() -> None:
    with ScriptedGateway(close(CloseCode.REPLACED)) as gateway:
        run(gateway.url, lambda session: session.request("text", request_id="r"))
    assert gateway.ids == ["r", "r"]
    assert len({opened.session_id for opened in gateway.seen.opens}) == 2


def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    with ScriptedGateway() as gateway:
        urls = f"ws://127.0.0.1:{free_port()}, {gateway.url}/prefix/, ws://127.0.0.1:{free_port()}"
        assert run(urls, lambda session: session.request("text", body={"a": None})).result["echo"] == {"a": None}
    assert gateway.seen.paths == ["/prefix/ws/session"]


def test_a_session_connects_to_a_gateway_that_starts_later() -> None:
    port = free_port()

    async def main() -> SessionReply:
        async with Session(f"ws://127.0.0.1:{port}", TOKEN, limits=FAST) as session:
            asking = asyncio.create_task(session.request("text", body={"late": True}))
            await asyncio.to_thread(gateway.__enter__)
            return await asking

    gateway = ScriptedGateway(port=port)
    try:
        assert asyncio.run(main()).result["echo"] == {"late": True}
    finally:
        gateway.__exit__()


def test_without_any_gateway_a_request_ends_when_patience_or_its_time_is_over() -> None:
    url = f"ws://127.0.0.1:{free_port()}"
    for limits, timeout_s in ((replace(FAST, patience_s=0.05), 60), (FAST, 0.2)):
        error = run(url, lambda session: error_of(session.request("text", timeout_s=timeout_s)), limits)  # noqa: B023
        assert (error.kind, error.code) == (ErrorKind.TRANSIENT, "gateway_unreachable")
        assert url in str(error)


def test_an_unanswered_request_ends_in_time_and_is_cancelled() -> None:
    with ScriptedGateway(step=silence) as gateway:

        async def talk(session: Session) -> UnitError:
            error = await error_of(session.request("text", timeout_s=0.2, request_id="r"))
            await seen(gateway, lambda: gateway.seen.cancels == ["r"], "the job is cancelled")
            return error

        error = run(gateway.url, talk)
    assert (error.kind, error.code) == (ErrorKind.TRANSIENT, "timeout")


def test_cancelling_the_coroutine_cancels_the_job_and_another_request_goes_on() -> None:
    with ScriptedGateway(silence, step=echo) as gateway:

        async def talk(session: Session) -> SessionReply:
            asking = asyncio.create_task(session.request("text", request_id="gone"))
            await seen(gateway, lambda: gateway.ids, "the request has arrived")
            asking.cancel()
            await seen(gateway, lambda: gateway.seen.cancels == ["gone"], "the job is cancelled")
            return await session.request("text", body={"n": 2})

        assert run(gateway.url, talk).result["echo"] == {"n": 2}


def test_two_sessions_with_the_same_request_share_one_job_until_both_cancel() -> None:
    with ScriptedGateway(step=silence) as gateway:

        async def talk(session: Session) -> SessionReply:
            first = asyncio.create_task(session.request("text", request_id="same"))
            second = asyncio.create_task(session.request("text", request_id="same"))
            await seen(gateway, lambda: gateway.ids, "the request has arrived")
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            gateway.do(gateway.seen.requests[0].answer({"text": "for the second"}))
            return await second

        assert run(gateway.url, talk).result == {"text": "for the second"}
    assert (gateway.ids, gateway.seen.cancels) == (["same"], [])


def test_errors_come_with_kind_code_and_wait() -> None:
    kinds = [
        (kind, 17.0 if kind == ErrorKind.RATE_LIMITED else None)
        for kind in ErrorKind
        if kind is not ErrorKind.UNAVAILABLE
    ]
    steps = [refuse(f"code_{kind}", str(kind), "why \x00", wait) for kind, wait in kinds]
    with ScriptedGateway(*steps) as gateway:

        async def talk(session: Session) -> list[UnitError]:
            return [await error_of(session.request("text")) for _ in kinds]

        errors = run(gateway.url, talk)
    assert [(error.kind, error.retry_after_s) for error in errors] == kinds
    assert [error.code for error in errors] == [f"code_{kind}" for kind, _ in kinds]
    assert str(errors[0]).strip() == "why"


@pytest.mark.parametrize(("limits", "welcome"), [(replace(FAST, max_requests=2), {}), (FAST, {"max_jobs": 2})])
def test_no_more_requests_are_under_way_than_allowed(limits: SessionLimits, welcome: dict[str, Any]) -> None:
    held: list[ReceivedRequest] = []

    async def hold(received: ReceivedRequest) -> None:
        held.append(received)

    with ScriptedGateway(step=hold, **welcome) as gateway:

        async def talk(session: Session) -> list[SessionReply]:
            asking = [asyncio.create_task(session.request("text", body={"n": n})) for n in range(5)]
            for count in (2, 3, 4, 5):
                await seen(gateway, lambda count=count: len(held) == count, f"{count} requests")
                gateway.do(echo(held[count - 2]))
            gateway.do(echo(held[4]))
            return await asyncio.gather(*asking)

        assert [answer.result["echo"]["n"] for answer in run(gateway.url, talk, limits)] == list(range(5))


def test_requests_wait_for_room_and_a_cancelled_one_admits_the_next() -> None:
    part = [(Attachment(size=0), b"x" * 1000)]
    with ScriptedGateway(silence) as gateway:

        async def talk(session: Session) -> list[int]:
            first = asyncio.create_task(session.request("text", attachments=part))
            await seen(gateway, lambda: gateway.ids, "the first request is under way")
            waiting = asyncio.create_task(session.request("text", attachments=part, request_id="gives-up"))
            small = asyncio.create_task(session.request("text"))
            await asyncio.sleep(0)
            waiting.cancel()  # the small request waited behind it
            sizes = (await small).result["bytes"]
            gateway.do(echo(gateway.seen.requests[0]))
            return [*sizes, *(await first).result["bytes"]]

        assert run(gateway.url, talk, replace(FAST, max_bytes=1900)) == [1000]
    assert "gives-up" not in gateway.ids


def test_closing_the_session_ends_waiting_requests_and_it_cannot_be_reused() -> None:
    with ScriptedGateway(step=silence) as gateway:

        async def main() -> UnitError:
            async with Session(gateway.url, TOKEN) as session:
                asking = asyncio.create_task(session.request("text"))
                await seen(gateway, lambda: gateway.ids, "the request has arrived")
            with pytest.raises(RuntimeError):
                await session.request("text")
            return await error_of(asking)

        assert asyncio.run(main()).code == "closed"
        gateway.wait_for(lambda: gateway.seen.open_now == 0, "the connection is closed")


def test_a_session_is_not_used_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedGateway() as gateway:

        async def talk(session: Session) -> None:
            await session.request("text")
            monkeypatch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(RuntimeError, match="process"):
                await session.request("text")
            monkeypatch.undo()

        run(gateway.url, talk)


def test_the_welcome_says_who_the_gateway_is_and_an_idle_session_stays_open() -> None:
    with ScriptedGateway() as gateway:

        async def talk(session: Session) -> list[str]:
            return [(await session.connected()).instance_id for _ in range(2)]

        assert run(gateway.url, talk) == ["scripted", "scripted"]
    assert len(gateway.seen.opens) == 1


def test_opening_a_session_fails_like_a_request() -> None:
    nowhere = f"ws://127.0.0.1:{free_port()}"

    def code(url: str, token: str, limits: SessionLimits = FAST, timeout_s: float = 20) -> str:
        return str(run(url, lambda session: error_of(session.connected(timeout_s)), limits, token).code)

    with ScriptedGateway() as gateway:
        assert code(gateway.url, "pstn_wrong") == "auth"
    assert code(nowhere, TOKEN, replace(FAST, patience_s=0.05)) == "gateway_unreachable"
    assert code(nowhere, TOKEN, timeout_s=0.1) == "gateway_unreachable"


def test_a_failing_callback_does_not_fail_the_request(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise ValueError

    with ScriptedGateway() as gateway, caplog.at_level(logging.CRITICAL):
        assert run(gateway.url, lambda session: session.request("text", on_sent=fail))


def test_one_request_without_asyncio() -> None:
    with ScriptedGateway() as gateway:
        assert ask(gateway.url, TOKEN, "text", body={"n": 1}, timeout_s=20).result["echo"] == {"n": 1}

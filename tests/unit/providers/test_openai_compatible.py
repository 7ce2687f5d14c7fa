import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import request_hooks
from pipeline.providers.openai_compatible import OpenAICompatible, token_limit_field
from pipeline.providers.protocols import Answer, Question, RejectedAnswer, Usage
from pipeline.reading.ocr.rendition import Picture
from pipeline.settings import ProviderProfile
from tests.support.provider_server import Fault, ProviderServer, default_markdown, default_vector

PNG = b"\x89PNG\r\n\x1a\n picture"
ROOT = Path(__file__).resolve().parents[3]
KEY = "sk-test-0123456789abcdef"


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer(api_key=KEY) as server:
        yield server


def provider_at(base_url: str, **profile: Any) -> OpenAICompatible:
    values: dict[str, Any] = {
        "base_url": base_url,
        "api_key": SecretStr(KEY),
        "model": "m-1",
        "timeout_s": 20,
    } | profile
    return OpenAICompatible("x", ProviderProfile(**values))


@pytest.fixture
def provider(server: ProviderServer) -> Iterator[OpenAICompatible]:
    provider = provider_at(server.base_url)
    yield provider
    provider.close()


def failure_of(provider: OpenAICompatible) -> UnitError:
    with pytest.raises(UnitError) as caught:
        provider.describe(PNG, "image/png", "Convert")
    return caught.value


def word_of(provider: OpenAICompatible) -> tuple[ErrorKind, str]:
    error = failure_of(provider)
    return error.kind, error.code


def embed_error(server: ProviderServer, provider: OpenAICompatible, data: Any, texts: list[str]) -> UnitError:
    server.push(Fault(status=200, body=data))
    with pytest.raises(UnitError) as caught:
        provider.embed(texts)
    return caught.value


def test_a_picture_and_its_prompt_reach_the_model_and_the_answer_comes_back(
    server: ProviderServer, provider: OpenAICompatible
) -> None:
    answer = provider.describe(PNG, "image/png", "Convert this")
    assert answer.text == default_markdown(PNG)
    assert (answer.model, answer.truncated) == ("m-1", False)
    assert answer.usage == Usage(input_tokens=803, output_tokens=len(answer.text) // 4)
    assert answer.latency_ms >= 0
    assert server.records[0].prompt == "Convert this"


def test_settings_of_the_profile_and_an_own_model_are_sent(server: ProviderServer) -> None:
    profile = ProviderProfile(
        base_url=server.base_url, api_key=SecretStr(KEY), max_tokens=77, temperature=0.5, model="a"
    )
    OpenAICompatible("x", profile, "b").complete("Hi", system="Be brief")
    body = server.records[0].body
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("b", 77, 0.5)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


def test_the_public_service_is_sent_the_newer_name_of_the_token_limit() -> None:
    assert token_limit_field(ProviderProfile()) == "max_completion_tokens"
    assert token_limit_field(ProviderProfile(base_url="http://127.0.0.1/v1")) == "max_tokens"


def test_a_json_schema_is_asked_for_strictly(server: ProviderServer, provider: OpenAICompatible) -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"echo": {"type": "string"}}}
    assert json.loads(provider.complete("Hi", json_schema=schema).text)["echo"]
    wanted = server.records[0].body["response_format"]
    assert wanted["type"] == "json_schema"
    assert wanted["json_schema"]["schema"] == schema
    assert wanted["json_schema"]["strict"] is True


def test_an_answer_cut_off_at_its_token_limit_says_so(server: ProviderServer, provider: OpenAICompatible) -> None:
    server.push(Fault(kind="truncated", text="half a pa"))
    answer = provider.describe(PNG, "image/png", "Convert")
    assert (answer.text, answer.truncated) == ("half a pa", True)


def test_an_empty_text_is_an_answer(server: ProviderServer, provider: OpenAICompatible) -> None:
    server.push(Fault(status=200, body={"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}))
    assert provider.describe(PNG, "image/png", "Convert").text == ""


@pytest.mark.parametrize("streams", [True, False])
def test_a_reply_that_ends_without_content_is_an_empty_answer_with_its_usage(
    server: ProviderServer, provider: OpenAICompatible, streams: bool
) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 500}
    if streams:
        event = json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage})
        data = f"data: {event}\n\ndata: [DONE]\n\n"
        server.push(Fault(status=200, body=data, headers={"Content-Type": "text/event-stream"}))
    else:
        choice = {"message": {"content": None}, "finish_reason": "stop"}
        server.push(Fault(status=200, body={"choices": [choice], "usage": usage}))
    answer = ask(provider)
    assert (answer.text, answer.truncated, answer.usage) == ("", False, Usage(1000, 500))


def test_content_in_parts_is_joined(server: ProviderServer, provider: OpenAICompatible) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    server.push(Fault(status=200, body={"choices": [{"message": {"content": parts}}]}))
    assert provider.complete("Hi").text == "ab"


def _ended_by(reason: str, **choice: object) -> Fault:
    message = {"content": "# Half"}
    return Fault(status=200, body={"choices": [{"message": message, "finish_reason": reason, **choice}]})


@pytest.mark.parametrize("reason", ["MAX_TOKENS", "model_length"])
def test_an_answer_that_stops_at_a_limit_is_truncated_by_any_name(
    server: ProviderServer, provider: OpenAICompatible, reason: str
) -> None:
    server.push(_ended_by(reason))
    assert provider.complete("Hi").truncated


@pytest.mark.parametrize(
    ("fault", "kind", "code"),
    [
        (Fault(kind="empty_choices"), ErrorKind.TRANSIENT, "empty_reply"),
        (Fault(kind="no_content"), ErrorKind.TRANSIENT, "empty_reply"),
        (Fault(kind="refusal"), ErrorKind.PERMANENT, "refused"),
        (Fault(kind="content_filter"), ErrorKind.PERMANENT, "refused"),
        (Fault(kind="malformed"), ErrorKind.TRANSIENT, "bad_reply"),
        (Fault(kind="html"), ErrorKind.TRANSIENT, "bad_reply"),
        (Fault(kind="close"), ErrorKind.TRANSIENT, "connection"),
        (Fault(status=200, body="[" * 100_000), ErrorKind.TRANSIENT, "bad_reply"),
        (Fault(status=200, body={"choices": "none"}), ErrorKind.TRANSIENT, "empty_reply"),
        (Fault(status=200, body={"choices": [{"message": "none"}]}), ErrorKind.TRANSIENT, "empty_reply"),
        (Fault(status=200, body={"error": {"code": 429, "message": "busy"}}), ErrorKind.RATE_LIMITED, "rate_limited"),
        (Fault(status=200, body={"error": "odd"}), ErrorKind.TRANSIENT, "server_error"),
        *[
            (Fault(status=200, body={"error": {name: value}}), kind, code)
            for name, value, kind, code in (
                ("type", "overloaded_error", ErrorKind.TRANSIENT, "overloaded"),
                ("type", "invalid_request_error", ErrorKind.PERMANENT, "bad_request"),
                ("status", "RESOURCE_EXHAUSTED", ErrorKind.RATE_LIMITED, "rate_limited"),
                ("code", "503", ErrorKind.TRANSIENT, "overloaded"),
            )
        ],
        (_ended_by("SAFETY"), ErrorKind.PERMANENT, "refused"),
        (_ended_by("refusal"), ErrorKind.PERMANENT, "refused"),
        (_ended_by("error"), ErrorKind.TRANSIENT, "server_error"),
        (_ended_by("error", error={"code": 429}), ErrorKind.RATE_LIMITED, "rate_limited"),
        (Fault(status=307, headers={"Location": "/v1/elsewhere"}), ErrorKind.UNAVAILABLE, "redirect"),
        (Fault(status=500), ErrorKind.TRANSIENT, "server_error"),
        (Fault(status=503, body="<html>"), ErrorKind.TRANSIENT, "overloaded"),
        (Fault(status=404), ErrorKind.UNAVAILABLE, "not_found"),
        (Fault(status=429), ErrorKind.RATE_LIMITED, "rate_limited"),
    ],
)
def test_each_fault_is_one_call_and_one_error_of_its_kind(
    server: ProviderServer, provider: OpenAICompatible, fault: Fault, kind: ErrorKind, code: str
) -> None:
    server.push(fault)
    assert word_of(provider) == (kind, code)
    assert len(server.records) == 1


def test_the_servers_wait_is_passed_on(server: ProviderServer, provider: OpenAICompatible) -> None:
    server.push(Fault(status=429, headers={"Retry-After": "17"}))
    assert failure_of(provider).retry_after_s == 17


@pytest.mark.parametrize("kind", ["hang", "trickle", "trickle_headers"])
def test_a_call_ends_at_its_limit_however_the_server_holds_it(server: ProviderServer, kind: Any) -> None:
    server.push(Fault(kind=kind))
    provider = provider_at(server.base_url, timeout_s=0.5)
    assert word_of(provider) == (ErrorKind.TRANSIENT, "timeout")
    assert server.wait_for(lambda: server.stats()["under_way"] == 0), "the connection was left open"
    assert provider.describe(PNG, "image/png", "Convert").text, "the next call failed"


def test_a_call_to_a_server_that_never_reads_ends_at_its_limit() -> None:
    # The picture is larger than the sockets' buffers.
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        provider = provider_at(f"http://127.0.0.1:{deaf.getsockname()[1]}/v1", timeout_s=0.5)
        with pytest.raises(UnitError) as caught:
            provider.describe(PNG * 1_000_000, "image/png", "Convert")
    assert caught.value.code == "timeout"


def test_a_reply_over_the_size_limit_is_refused(server: ProviderServer) -> None:
    profile = ProviderProfile(base_url=server.base_url, api_key=SecretStr(KEY), model="m", timeout_s=20)
    provider = OpenAICompatible("x", profile, max_reply_bytes=1000)
    for status in (200, 500):
        server.push(Fault(status=status, body="x" * 5000))
        assert word_of(provider) == (ErrorKind.PERMANENT, "too_large")


def test_a_server_that_is_not_there_is_a_connection_error(server: ProviderServer, provider: OpenAICompatible) -> None:
    server.stop()
    error = failure_of(provider)
    assert (error.kind, error.code) == (ErrorKind.TRANSIENT, "connection")
    assert "PENSTOCK_PROVIDERS__X__BASE_URL" in str(error)


def test_a_connection_that_was_closed_while_idle_is_replaced(
    server: ProviderServer, provider: OpenAICompatible
) -> None:
    provider.complete("one")
    provider.close()
    assert provider.complete("two").text


def test_a_wrong_key_is_an_error_of_the_key_that_does_not_show_it(server: ProviderServer) -> None:
    error = failure_of(provider_at(server.base_url, api_key=SecretStr("sk-wrong-987654321")))
    assert (error.kind, error.code) == (ErrorKind.UNAVAILABLE, "auth")
    assert "PENSTOCK_PROVIDERS__X__API_KEY" in str(error)
    assert "sk-wrong" not in str(error)


def test_an_error_carries_neither_the_request_nor_the_key(server: ProviderServer, provider: OpenAICompatible) -> None:
    server.push(Fault(status=400, body={"error": {"message": f"key {KEY} data:image/png;base64,{'QUJD' * 50}"}}))
    error = failure_of(provider)
    assert error.__suppress_context__
    assert KEY not in str(error)
    assert "QUJD" not in str(error)


def test_a_key_with_blanks_around_it_works_and_odd_ones_are_named(server: ProviderServer) -> None:
    assert provider_at(server.base_url, api_key=SecretStr(f" {KEY}\n")).complete("Hi").text
    error = failure_of(provider_at(server.base_url, api_key=SecretStr("sk-a\nsk-b")))
    assert error.code == "auth"
    assert "sk-a" not in str(error)


def test_without_a_key_no_authorization_is_sent_and_no_other_program_s(
    server: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert failure_of(provider_at(server.base_url, api_key=SecretStr(""))).code == "auth"
    server.script.api_key = ""
    assert provider_at(server.base_url, api_key=SecretStr("")).complete("Hi").text


def test_a_missing_model_or_key_is_named_without_a_call(server: ProviderServer) -> None:
    no_model = failure_of(provider_at(server.base_url, model=""))
    assert (no_model.kind, no_model.code) == (ErrorKind.UNAVAILABLE, "no_model")
    assert "PENSTOCK_PROVIDERS__X__MODEL" in str(no_model)
    no_key = failure_of(provider_at(ProviderProfile().base_url, api_key=SecretStr("")))
    assert (no_key.kind, no_key.code) == (ErrorKind.UNAVAILABLE, "auth")
    assert server.records == []


def test_an_unsendable_request_is_a_permanent_error(provider: OpenAICompatible) -> None:
    for call in (
        lambda: provider.describe(b"", "image/png", "Convert"),
        lambda: provider.describe(PNG, "image/tiff", "Convert"),
        lambda: provider.complete("lone \ud800 surrogate"),
        lambda: provider.embed(["fine", " \n"]),
    ):
        with pytest.raises(UnitError) as caught:
            call()
        assert caught.value.kind is ErrorKind.PERMANENT


def test_vectors_come_in_the_order_of_the_texts(server: ProviderServer, provider: OpenAICompatible) -> None:
    vectors = provider.embed(["a", "b", "c"])
    assert vectors.vectors == [default_vector(text) for text in "abc"]
    assert (vectors.model, vectors.usage.input_tokens) == ("m-1", 3)
    data = [{"index": 1, "embedding": [2]}, {"index": 0, "embedding": [1.5]}]
    server.push(Fault(status=200, body={"data": data}))
    assert provider.embed(["a", "b"]).vectors == [[1.5], [2.0]]


def test_no_texts_need_no_call(server: ProviderServer, provider: OpenAICompatible) -> None:
    assert provider.embed([]).vectors == []
    assert server.records == []


@pytest.mark.parametrize(
    "data",
    [
        [{"index": 0, "embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 5, "embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": [], "embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": []}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": ["1"]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [float("nan")]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [float("-inf")]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [10**400]}],
        [{"index": 0, "embedding": [1.0]}, 7],
        "none",
    ],
)
def test_vectors_that_do_not_fit_the_texts_are_refused(
    server: ProviderServer, provider: OpenAICompatible, data: Any
) -> None:
    error = embed_error(server, provider, {"data": data}, ["a", "b"])
    assert (error.kind, error.code) == (ErrorKind.TRANSIENT, "bad_reply")


def test_sixty_four_threads_call_at_once_through_one_provider(
    server: ProviderServer, provider: OpenAICompatible
) -> None:
    server.script.latency_s = 60
    with ThreadPoolExecutor(64) as pool:
        calls = [pool.submit(failure_of, provider) for _ in range(64)]
        assert server.wait_for(lambda: server.max_concurrent == 64, timeout_s=60)
        server.stop()
        assert {call.result().code for call in calls} == {"connection"}


def test_each_thread_gets_the_answer_to_its_own_call(provider: OpenAICompatible) -> None:
    pictures = [PNG + bytes([number]) for number in range(64)]
    with ThreadPoolExecutor(64) as pool:
        texts = list(pool.map(lambda picture: provider.describe(picture, "image/png", "Convert").text, pictures))
    assert texts == [default_markdown(picture) for picture in pictures]


FORKING = """
import multiprocessing, sys
from pydantic import SecretStr
from pipeline.engine.guarded_call import request_hooks
from pipeline.providers.openai_compatible import OpenAICompatible
from pipeline.settings import ProviderProfile

provider = OpenAICompatible("x", ProviderProfile(base_url=sys.argv[1], api_key=SecretStr(sys.argv[2]), model="m-1"))
provider.complete("before the fork")
receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
child = multiprocessing.get_context("fork").Process(target=lambda: sender.send(provider.complete("same").text))
child.start()
assert receiver.poll(30), "the child's call never came back"
assert receiver.recv() == provider.complete("same").text
child.join()
assert child.exitcode == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
class Hooks:
    """Ready when `when` are; `sent` when both were."""

    def __init__(self, when: threading.Barrier) -> None:
        self.when = when
        self.seen: list[str] = []

    def ready(self) -> None:
        self.seen.append("ready")
        self.when.wait(60)

    def sent(self) -> None:
        self.seen.append("sent")
        self.when.wait(60)


def test_a_call_that_waits_at_its_gate_delays_no_other_call(server: ProviderServer, provider: OpenAICompatible) -> None:
    both = threading.Barrier(2)

    def call(hooks: Hooks) -> str:
        request_hooks.set(hooks)
        return provider.complete("Hi").text

    waiting = [Hooks(both), Hooks(both)]
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(call, waiting))
    assert [hooks.seen for hooks in waiting] == [["ready", "sent"]] * 2
    assert len(answers) == len(server.records) == 2


def test_a_forked_child_calls_on_its_own_connections_and_the_parent_goes_on(server: ProviderServer) -> None:
    # Use a separate process: this one has other tests' threads, which may hold locks at the fork.
    subprocess.run([sys.executable, "-c", FORKING, server.base_url, KEY], check=True, timeout=90, cwd=ROOT)


def ask(provider: OpenAICompatible, watch: Callable[[str], bool] = lambda _: False) -> Answer:
    return provider.show(Picture(PNG, "image/png", 280, 280), Question("Convert"), watch)


def test_a_streamed_answer_is_the_same_as_a_whole_one(server: ProviderServer, provider: OpenAICompatible) -> None:
    pieces: list[str] = []
    streamed = ask(provider, lambda piece: bool(pieces.append(piece)))
    assert "".join(pieces) == streamed.text == default_markdown(PNG)
    assert server.records[-1].body["stream_options"] == {"include_usage": True}
    server.script.streams = False
    assert ask(provider).usage == streamed.usage
    server.push(Fault(kind="truncated", text="half"))
    server.script.streams = True
    assert (ask(provider).truncated, server.records[-1].pieces > 1) == (True, True)


def test_an_answer_is_broken_off_at_once_and_its_tokens_are_estimated(
    server: ProviderServer, provider: OpenAICompatible
) -> None:
    server.script.picture_answer = lambda _: "again and again " * 1000
    server.script.piece_s = 0.01
    seen: list[str] = []
    answer = ask(provider, lambda piece: len("".join(seen)) > 100 or bool(seen.append(piece)))
    assert answer.cut
    assert 100 < len(answer.text) < 200
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (101, len(answer.text) // 4)
    assert "repeats itself" in answer.usage.note
    server.stop()  # waits for the server's threads: the connection has ended long before the last piece
    assert server.records[-1].pieces < 40


def test_tokens_of_a_stream_without_a_report_are_estimated(server: ProviderServer, provider: OpenAICompatible) -> None:
    server.script.reports_usage = False
    answer = ask(provider)
    assert answer.usage.output_tokens >= len(answer.text) // 8
    assert "estimated" in answer.usage.note


def test_a_service_that_refuses_to_stream_is_asked_for_whole_answers_from_then_on(
    server: ProviderServer, provider: OpenAICompatible
) -> None:
    body = {"error": {"message": "Unknown parameter: 'stream_options'.", "param": "stream_options"}}
    server.script.rule = lambda record: Fault(status=400, body=body) if record.body.get("stream") else None
    assert ask(provider).text == ask(provider).text == default_markdown(PNG)
    assert [record.status for record in server.records] == [400, 200, 200]


@pytest.mark.parametrize(
    ("events", "word"),
    [
        (['{"choices": [{"delta": {"content": "half"}}]}'], (ErrorKind.TRANSIENT, "bad_reply")),
        (["{half"], (ErrorKind.TRANSIENT, "bad_reply")),
        (["[" * 100_000], (ErrorKind.TRANSIENT, "bad_reply")),
        (['{"choices": []}', "[DONE]"], (ErrorKind.TRANSIENT, "empty_reply")),
        (
            ['{"choices": [{"delta": {"content": "a"}}]}', '{"error": {"code": 429}}'],
            (ErrorKind.RATE_LIMITED, "rate_limited"),
        ),
        (
            ['{"choices": [{"delta": {"content": "a"}}]}', '{"type": "error", "error": {"type": "overloaded_error"}}'],
            (ErrorKind.TRANSIENT, "overloaded"),
        ),
        (
            ['{"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 503}}]}'],
            (ErrorKind.TRANSIENT, "overloaded"),
        ),
        (['{"choices": [{"delta": {"refusal": "No"}, "finish_reason": "stop"}]}'], (ErrorKind.PERMANENT, "refused")),
        (['{"choices": [7, {"delta": 7}]}', "7", "[DONE]"], (ErrorKind.TRANSIENT, "bad_reply")),
    ],
)
def test_a_stream_that_breaks_off_or_is_no_stream_is_an_error(
    server: ProviderServer, provider: OpenAICompatible, events: list[str], word: tuple[ErrorKind, str]
) -> None:
    data = "".join(f"data: {event}\n\n" for event in events)
    server.push(Fault(status=200, body=data, headers={"Content-Type": "text/event-stream"}))
    with pytest.raises(UnitError) as caught:
        ask(provider)
    assert (caught.value.kind, caught.value.code) == word


def test_a_model_that_still_reasons_at_the_time_limit_is_told_from_a_slow_one(server: ProviderServer) -> None:
    event = b'data: {"choices": [{"delta": {"reasoning_content": "Let me see. "}}]}\n\n'
    server.push(Fault(status=200, body=event, headers={"Content-Type": "text/event-stream", "Content-Length": "9999"}))
    with pytest.raises(RejectedAnswer) as caught:
        ask(provider_at(server.base_url, timeout_s=0.5))
    assert (caught.value.code, caught.value.answer.usage.output_tokens) == ("reasoning", 1)
    assert "REQUEST_FIELDS" in str(caught.value)


def test_a_streamed_answer_ends_within_the_time_and_size_allowed(server: ProviderServer) -> None:
    server.script.picture_answer = lambda _: "word " * 2000
    server.script.piece_s = 0.02
    with pytest.raises(UnitError) as caught:
        ask(provider_at(server.base_url, timeout_s=0.3))
    assert caught.value.code == "timeout"
    server.script.piece_s = 0
    small = OpenAICompatible("x", provider_at(server.base_url).profile, max_reply_bytes=10_000)
    with pytest.raises(UnitError) as caught:
        ask(small)
    assert caught.value.code == "too_large"

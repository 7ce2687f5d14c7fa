"""Replies of a hostile service take a bounded time and memory, and lose no answer that arrived."""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.providers.openai_compatible import OpenAICompatible
from pipeline.providers.protocols import Usage
from pipeline.providers.replies import BadReply, as_json, finite_vectors
from pipeline.providers.token_claim import most_input, most_output
from pipeline.settings import ProviderProfile
from tests.support.provider_server import Fault, ProviderServer
from tests.support.web_server import WebServer

PROMPT = "Hi"
GOOD: dict[str, Any] = {"choices": [{"message": {"content": "fine"}}]}
MOST_IN, MOST_OUT = most_input([PROMPT]), most_output("fine", 8192)


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as web:
        yield web


def provider_at(base_url: str, **options: Any) -> OpenAICompatible:
    profile = ProviderProfile(base_url=base_url, api_key=SecretStr("sk-1"), model="m", timeout_s=20)
    return OpenAICompatible("x", profile, **options)


def word_of(ask: Callable[[], object]) -> tuple[ErrorKind, str]:
    with pytest.raises(UnitError) as caught:
        ask()
    return caught.value.kind, caught.value.code


def packed_answer(web: WebServer, body: bytes, coding: str, **options: Any) -> OpenAICompatible:
    web.pages["/v1/chat/completions"] = lambda request: request.answer(
        body, Content_Type="application/json", Content_Encoding=coding
    )
    return provider_at(f"http://127.0.0.1:{web.port}/v1", **options)


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "gzip, gzip", "identity, gzip"])
def test_a_few_packed_bytes_do_not_become_gigabytes(web: WebServer, coding: str):
    bomb = zlib.compress(bytes(20_000_000)) if coding == "deflate" else gzip.compress(bytes(20_000_000))
    bomb = gzip.compress(bomb) if coding.count("gzip") == 2 else bomb
    provider = packed_answer(web, bomb, coding, max_reply_bytes=3_000_000)
    tracemalloc.start()
    try:
        assert word_of(lambda: provider.complete(PROMPT)) == (ErrorKind.PERMANENT, "too_large")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZIP", "deflate"])
def test_a_compressed_answer_that_was_not_requested_is_read(web: WebServer, coding: str):
    pack = zlib.compress if coding == "deflate" else gzip.compress
    assert packed_answer(web, pack(json.dumps(GOOD).encode()), coding).complete(PROMPT).text == "fine"


def test_an_answer_with_an_unknown_compression_is_a_permanent_error(web: WebServer):
    provider = packed_answer(web, b"\x00", "zstd")
    assert word_of(lambda: provider.complete(PROMPT)) == (ErrorKind.PERMANENT, "unsupported")


@pytest.mark.parametrize("body", ["[],", "{},", '{"a":1},', "[[[]]],", '{"a":1,"b":2},', "1,1,1,1,1,1,1,"])
def test_a_reply_of_very_many_objects_is_not_built(server: ProviderServer, body: str):
    provider = provider_at(server.base_url)
    server.push(Fault(status=200, body='{"choices": [' + body * 600_000 + "1]}"))
    assert word_of(lambda: provider.complete(PROMPT)) == (ErrorKind.PERMANENT, "too_large")
    with pytest.raises(BadReply):
        as_json("[" + body * 600_000 + "1]", max_chars=None)


def test_very_many_names_are_not_remembered():
    with pytest.raises(BadReply):
        as_json("{" + ",".join(f'"{number:x}":1' for number in range(600_000)) + "}", max_chars=None)


@pytest.mark.parametrize(
    ("tokens", "counted"),
    [
        ("1e30", MOST_IN),
        (f"{10**30}", MOST_IN),
        (f"{10**15}", MOST_IN),
        ("9" * 5001, MOST_IN),
        ("Infinity", MOST_IN),
        ("-5", 0),
        ("NaN", 0),
        ('"12"', 0),
        ("true", 0),
        ("[12]", 0),
        ('{"a": 1}', 0),
        ("12.5", 12),
        ("-Infinity", 0),
    ],
    ids=lambda value: str(value)[:12],
)
def test_absurd_usage_is_counted_up_to_a_plausible_limit_and_the_answer_is_kept(
    server: ProviderServer, tokens: str, counted: int
):
    usage = f', "usage": {{"prompt_tokens": {tokens}, "completion_tokens": {tokens}}}}}'
    server.push(Fault(status=200, body=json.dumps(GOOD)[:-1] + usage))
    answer = provider_at(server.base_url).complete(PROMPT)
    counted_out = MOST_OUT if counted == MOST_IN else counted
    assert (answer.text, replace(answer.usage, note="")) == ("fine", Usage(counted, counted_out))
    assert "input tokens, counted as" in answer.usage.note
    assert len(answer.usage.note) < 200


@pytest.mark.parametrize("usage", [{}, {"usage": None}, {"usage": []}, {"usage": {"prompt_tokens": None}}])
def test_a_reply_without_usage_is_accepted(server: ProviderServer, usage: dict[str, Any]):
    server.push(Fault(status=200, body=GOOD | usage))
    assert provider_at(server.base_url).complete(PROMPT).usage == Usage()


def test_an_answer_survives_unstorable_characters_and_endless_names(server: ProviderServer):
    body = {"choices": [{"message": {"content": "a\x00b\ud800c"}}], "model": "m\x00" * 500_000}
    server.push(Fault(status=200, body=body))
    answer = provider_at(server.base_url).complete(PROMPT)
    assert answer.text == "a\ufffdb\ufffdc"
    assert answer.model == "m\ufffd" * 60


@pytest.mark.parametrize(
    "body",
    [
        '{"choices": [{"message": {"content": "first"}}], "choices": [{"message": {"content": "fine"}}]}',
        json.dumps({"choices": [{"message": {"content": "fine"}}] + [{}] * 100_000}),
        json.dumps(GOOD | {"data": 5, "error": None, "id": [[[]]], "service_tier": {}, "created": -(10**30)}),
        "\ufeff" + json.dumps(GOOD),
    ],
    ids=["twice", "choices", "types", "mark"],
)
def test_odd_envelopes_are_read(server: ProviderServer, body: str):
    server.push(Fault(status=200, body=body, headers={"Content-Type": "image/png; charset=\x01"}))
    assert provider_at(server.base_url).complete(PROMPT).text == "fine"


@pytest.mark.parametrize(
    "location", ["http://[::1", "//", "http://169.254.169.254/", "x" * 60_000, "\x01", "http://a:b@c:0/"]
)
def test_a_redirect_to_any_address_is_not_followed(server: ProviderServer, location: str):
    server.push(Fault(status=302, headers={"Location": location}))
    kind, code = word_of(lambda: provider_at(server.base_url).complete(PROMPT))
    assert (kind, code) in {(ErrorKind.UNAVAILABLE, "redirect"), (ErrorKind.TRANSIENT, "connection")}
    assert len(server.records) == 1


@pytest.mark.parametrize("status", [200, 400, 500])
def test_an_error_of_megabytes_becomes_one_line(server: ProviderServer, status: int):
    text = "\x1b]0;owned\x07 data: sk- \u202e\n" * 100_000
    body = {
        "error": {"message": text, "code": ["x"], "type": {"a": 1}, "param": [], "details": [{"violations": 5}] * 9}
    }
    server.push(Fault(status=status, body=body))
    with pytest.raises(UnitError) as caught:
        provider_at(server.base_url).complete(PROMPT)
    assert len(str(caught.value)) <= 500
    assert not {"\x1b", "\x07", "\n"} & set(str(caught.value))


@pytest.mark.parametrize(
    "vector",
    [[True, False], [1e300, 1.0], [10**400, 1], [0.1] * 1_000_000, ["1"], [None], {"a": 1}, [[1.0]], [float("nan")]],
    ids=lambda value: str(value)[:20],
)
def test_vectors_that_cannot_be_stored_are_refused(vector: object):
    with pytest.raises(ValueError, match="vector"):
        finite_vectors([vector], 1)

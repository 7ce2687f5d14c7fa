"""The provider of kind `nodes` against a scripted gateway."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GateClosed, request_hooks
from pipeline.providers import registry
from pipeline.providers.nodes import Nodes
from pipeline.providers.protocols import Usage
from pipeline.providers.token_claim import most_output
from pipeline.settings import ProviderProfile, Settings
from tests.support.scripted_sessions import TOKEN, ReceivedRequest, ScriptedGateway, cut, refuse, reply, silence

ROOT = Path(__file__).resolve().parents[3]
PNG = b"\x89PNG\r\n\x1a\n picture"
FULL = {
    "text": "hi",
    "model": "q",
    "usage": {"input_tokens": 7, "output_tokens": 2},
    "latency_ms": 5,
    "truncated": False,
}


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with ScriptedGateway(step=reply(FULL)) as gateway:
        yield gateway


def nodes_at(url: str, **profile: Any) -> Nodes:
    values: dict[str, Any] = {"kind": "nodes", "base_url": url, "api_key": SecretStr(TOKEN), "timeout_s": 20}
    desk = ProviderProfile(**values | profile)
    return Nodes("desk", desk)


@pytest.fixture
def nodes(gateway: ScriptedGateway) -> Iterator[Nodes]:
    desk = nodes_at(gateway.url)
    yield desk
    desk.close()


def error_of(nodes: Nodes, prompt: str = "Hi") -> UnitError:
    with pytest.raises(UnitError) as caught:
        nodes.complete(prompt)
    return caught.value


class Hooks:
    """Records calls of the hooks. `closed`: the gate is closed."""

    def __init__(self, closed: bool = False, both: threading.Barrier | None = None) -> None:
        self.closed = closed
        self.both = both
        self.seen: list[str] = []

    def ready(self) -> None:
        self.seen.append("ready")
        if self.closed:
            raise GateClosed("closed", retry_after_s=3, code="gate_closed")
        if self.both:
            self.both.wait(60)

    def sent(self) -> None:
        self.seen.append("sent")
        if self.both:
            self.both.wait(60)


def with_hooks(nodes: Nodes, hooks: Hooks) -> str:
    token = request_hooks.set(hooks)
    try:
        return nodes.complete("Hi").text
    finally:
        request_hooks.reset(token)


def test_requests_follow_the_protocol(gateway: ScriptedGateway, nodes: Nodes) -> None:
    answer = nodes.describe_all([PNG, PNG], "image/png", "What?", system="Be brief", json_schema={"type": "object"})
    assert (answer.text, answer.model, answer.usage, answer.truncated) == ("hi", "q", Usage(7, 2), False)
    nodes.complete("Hi")
    described, completed = (received.request for received in gateway.seen.requests)
    assert described.capability == "vision"
    assert described.body == {"prompt": "What?", "system": "Be brief", "json_schema": {"type": "object"}}
    assert [about.media_type for about in described.attachments] == ["image/png"] * 2
    assert gateway.seen.requests[0].parts == [PNG, PNG]
    assert (completed.capability, completed.body, completed.model) == ("text", {"prompt": "Hi"}, "")
    assert (completed.if_no_node, completed.timeout_ms <= 20_000) == ("error", True)


def test_the_profile_sets_the_model_and_the_wait_for_a_node(gateway: ScriptedGateway) -> None:
    nodes = nodes_at(gateway.url, model="m-1", when_no_node="wait")
    gateway.script.append(reply({"text": "", "model": None, "usage": None}))
    answer = nodes.complete("Hi")
    assert (answer.text, answer.model, answer.usage) == ("", "m-1", Usage())
    [received] = gateway.seen.requests
    assert (received.request.model, received.request.if_no_node) == ("m-1", "wait")


def test_vectors_have_the_order_of_the_texts_and_the_name_of_the_requested_model(gateway: ScriptedGateway) -> None:
    nodes = nodes_at(gateway.url, model="m-1")
    gateway.script.append(reply({"vectors": [[1, 2.5], [3, 4]], "model": "m-1:latest", "usage": {"input_tokens": 2}}))
    vectors = nodes.embed(["a", "b"])
    assert (vectors.vectors, vectors.model, vectors.usage) == ([[1.0, 2.5], [3.0, 4.0]], "m-1", Usage(2, 0))
    assert gateway.seen.requests[0].request.body == {"texts": ["a", "b"]}
    assert nodes.embed([]).vectors == []
    assert len(gateway.seen.requests) == 1


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"text": None},
        {"text": 7},
        {"text": "t", "truncated": "yes"},
    ],
)
def test_a_result_of_another_shape_is_refused(gateway: ScriptedGateway, nodes: Nodes, result: dict[str, Any]) -> None:
    gateway.script.append(reply(result))
    error = error_of(nodes)
    assert (error.kind, error.code) == (ErrorKind.TRANSIENT, "bad_reply")


@pytest.mark.parametrize(
    ("fields", "usage"),
    [
        ({"usage": []}, Usage()),
        ({"usage": {"input_tokens": -1}}, Usage()),
        ({"model": {"a": 1}}, Usage()),
        ({"usage": {"output_tokens": 10**30}}, Usage(0, most_output("t", 8192))),
    ],
)
def test_nonsense_about_model_and_usage_does_not_cost_the_answer(
    gateway: ScriptedGateway, nodes: Nodes, fields: dict[str, Any], usage: Usage
) -> None:
    gateway.script.append(reply({"text": "t"} | fields))
    answer = nodes.complete("Hi")
    assert (answer.text, replace(answer.usage, note="")) == ("t", usage)


@pytest.mark.parametrize(
    "vectors",
    [None, "none", [], [[1.0]], [[1.0], []], [[1.0], ["1"]], [[1.0], [1.0, 2.0]], [[1.0], 7], [[1.0], [None]]],
)
def test_vectors_that_do_not_fit_are_refused(gateway: ScriptedGateway, nodes: Nodes, vectors: Any) -> None:
    gateway.script.append(reply({"vectors": vectors}))
    with pytest.raises(UnitError) as caught:
        nodes.embed(["a", "b"])
    assert (caught.value.kind, caught.value.code) == (ErrorKind.TRANSIENT, "bad_reply")


def test_numbers_outside_json_are_refused(gateway: ScriptedGateway, nodes: Nodes) -> None:
    async def infinite(received: ReceivedRequest) -> None:
        message = {
            "type": "job_result",
            "request_id": received.request.request_id,
            "result": {"vectors": [[float("inf")]]},
        }
        await received.socket.send(json.dumps(message))

    gateway.script.append(infinite)
    with pytest.raises(UnitError) as caught:
        nodes.embed(["a"])
    assert caught.value.code == "bad_reply"


def test_characters_that_databases_refuse_are_replaced_in_a_nodes_answer(
    gateway: ScriptedGateway, nodes: Nodes
) -> None:
    async def odd(received: ReceivedRequest) -> None:
        message = {
            "type": "job_result",
            "request_id": received.request.request_id,
            "result": {"text": "a\0\ud800", "model": "\0"},
        }
        await received.socket.send(json.dumps(message))

    gateway.script.append(odd)
    answer = nodes.complete("Hi")
    assert (answer.text, answer.model) == ("a\ufffd\ufffd", "\ufffd")


def test_errors_of_nodes_keep_kind_and_code_and_show_no_token(gateway: ScriptedGateway, nodes: Nodes) -> None:
    gateway.script.extend(
        [
            refuse("crashed", "transient", f"with {TOKEN}"),
            refuse("bad_picture", "permanent"),
            refuse("later", "rate_limited", "", 9),
            refuse("cancelled", "cancelled"),
        ]
    )
    errors = [error_of(nodes) for _ in range(4)]
    outcomes = [(error.kind, error.code, error.retry_after_s) for error in errors]
    assert outcomes == [
        (ErrorKind.TRANSIENT, "crashed", None),
        (ErrorKind.PERMANENT, "bad_picture", None),
        (ErrorKind.RATE_LIMITED, "later", 9),
        (ErrorKind.TRANSIENT, "cancelled", None),
    ]
    assert str(errors[0]) == "provider 'desk' failed: with ***"


@pytest.mark.parametrize(
    ("code", "delay_s", "waits"),
    [("no_node", None, 15), ("no_node", 4, 4), ("MODEL_NOT_AVAILABLE", None, 15), ("NODE_BUSY", 1, 1)],
)
def test_no_node_pauses_the_queue(gateway: ScriptedGateway, code: str, delay_s: float | None, waits: float) -> None:
    gateway.script.append(refuse(code, "permanent", "none", delay_s))
    error = error_of(nodes_at(gateway.url, model="qwen"))
    assert (error.kind, error.code, error.retry_after_s) == (ErrorKind.RATE_LIMITED, "no_node", waits)
    assert "'qwen'" in str(error)


def test_a_missing_or_wrong_token_is_named_with_its_setting(gateway: ScriptedGateway) -> None:
    for token in ("", "pstn_wrong", "odd\nones"):
        error = error_of(nodes_at(gateway.url, api_key=SecretStr(token)))
        assert (error.kind, error.code) == (ErrorKind.UNAVAILABLE, "auth")
        assert "PENSTOCK_PROVIDERS__DESK__API_KEY" in str(error)
        assert "pstn_wrong" not in str(error)


def test_a_call_ends_at_its_limit_with_and_without_a_gateway(gateway: ScriptedGateway) -> None:
    gateway.step = silence
    late = error_of(nodes_at(gateway.url, timeout_s=0.3))
    assert (late.kind, late.code) == (ErrorKind.TRANSIENT, "timeout")
    assert "PENSTOCK_PROVIDERS__DESK__TIMEOUT_S" in str(late)
    gateway.wait_for(lambda: gateway.seen.cancels, "the job is cancelled")
    unreachable = error_of(nodes_at("ws://127.0.0.1:9", timeout_s=0.3))
    assert (unreachable.kind, unreachable.code) == (ErrorKind.TRANSIENT, "gateway_unreachable")
    assert "PENSTOCK_PROVIDERS__DESK__BASE_URL" in str(unreachable)


def test_a_resent_call_counts_as_ready_and_sent_once(gateway: ScriptedGateway, nodes: Nodes) -> None:
    gateway.script.append(cut)
    hooks = Hooks()
    assert with_hooks(nodes, hooks) == "hi"
    assert hooks.seen == ["ready", "sent"]
    assert len(gateway.ids) == 2


def test_nothing_is_sent_when_the_gate_has_closed(gateway: ScriptedGateway, nodes: Nodes) -> None:
    hooks = Hooks(closed=True)
    with pytest.raises(GateClosed):
        with_hooks(nodes, hooks)
    assert (hooks.seen, gateway.ids) == (["ready"], [])


def test_a_call_that_waits_at_its_gate_delays_no_other_call(nodes: Nodes) -> None:
    both = threading.Barrier(2)
    waiting = [Hooks(both=both), Hooks(both=both)]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda hooks: with_hooks(nodes, hooks), waiting)) == ["hi", "hi"]
    assert [hooks.seen for hooks in waiting] == [["ready", "sent"]] * 2


def test_the_same_content_is_the_same_job_until_its_answer(gateway: ScriptedGateway, nodes: Nodes) -> None:
    nodes.complete("Hi")
    nodes.complete("Hi")
    nodes.complete("Other")
    fresh = nodes_at(gateway.url)  # as in a process that starts after this one is killed
    fresh.complete("Hi")
    first, second, other, repeated = gateway.ids
    assert first == repeated
    assert (first[-2:], second[-2:], other[-2:]) == (":0", ":1", ":0")
    assert first[:-2] == second[:-2] != other[:-2]


def test_an_error_is_an_answer_and_an_unreachable_gateway_is_not(gateway: ScriptedGateway, nodes: Nodes) -> None:
    gateway.script.append(refuse("crashed"))
    error_of(nodes)
    nodes.complete("Hi")
    assert [name[-2:] for name in gateway.ids] == [":0", ":1"]
    unreachable = nodes_at("ws://127.0.0.1:9", timeout_s=0.2)
    error_of(unreachable)
    assert set(unreachable._answers.values()) == set()


def test_the_models_of_one_gateway_share_a_session_and_close_makes_a_new_one(gateway: ScriptedGateway) -> None:
    first, two = nodes_at(gateway.url, model="a"), nodes_at(gateway.url, model="b")
    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(lambda n: (first, two)[n % 2].complete(str(n)).text, range(64))) == {"hi"}
    assert len(gateway.seen.opens) == 1
    first.close()
    gateway.wait_for(lambda: gateway.seen.open_now == 0, "the session is closed")
    assert two.complete("again").text == "hi"
    assert len(gateway.seen.opens) == 2


def test_a_collected_provider_closes_its_session(gateway: ScriptedGateway) -> None:
    desk = nodes_at(gateway.url)
    desk.complete("Hi")
    del desk
    gateway.wait_for(lambda: gateway.seen.open_now == 0, "the session is closed")


def test_probing_opens_a_session(gateway: ScriptedGateway, tmp_path: Path) -> None:
    profile = ProviderProfile(kind="nodes", base_url=gateway.url, api_key=SecretStr(TOKEN), timeout_s=5)
    wrong = profile.model_copy(update={"api_key": SecretStr("pstn_wrong")})
    settings = Settings(data_dir=tmp_path, providers={"desk": profile, "wrong": wrong})
    assert "instance scripted" in registry.probe(settings, "desk")
    with pytest.raises(UnitError) as caught:
        registry.probe(settings, "wrong")
    assert caught.value.code == "auth"
    assert gateway.ids == []


def test_an_unsendable_request_is_a_permanent_error(gateway: ScriptedGateway, nodes: Nodes) -> None:
    for call in (
        lambda: nodes.describe(b"", "image/png", "Convert"),
        lambda: nodes.describe(PNG, "image/tiff", "Convert"),
        lambda: nodes.describe(PNG * 1_000_000, "image/png", "too large for the gateway"),
        lambda: nodes.complete("lone \ud800 surrogate"),
        lambda: nodes.embed(["fine", " \n"]),
    ):
        with pytest.raises(UnitError) as caught:
            call()
        assert caught.value.kind is ErrorKind.PERMANENT
    assert gateway.ids == []


FORKING = """
import multiprocessing, sys
from pydantic import SecretStr
from pipeline.providers.nodes import Nodes
from pipeline.settings import ProviderProfile

nodes = Nodes("x", ProviderProfile(kind="nodes", base_url=sys.argv[1], api_key=SecretStr(sys.argv[2])))
nodes.complete("before the fork")
receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
child = multiprocessing.get_context("fork").Process(target=lambda: sender.send(nodes.complete("same").text))
child.start()
assert receiver.poll(30), "the child's call never came back"
assert receiver.recv() == nodes.complete("after").text
child.join()
assert child.exitcode == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_its_own_session_and_the_parent_keeps_its_session(gateway: ScriptedGateway) -> None:
    subprocess.run([sys.executable, "-c", FORKING, gateway.url, TOKEN], check=True, timeout=90, cwd=ROOT)
    before, child, after = gateway.seen.requests
    assert before.connection == after.connection != child.connection
    assert len({opened.session_id for opened in gateway.seen.opens}) == 2

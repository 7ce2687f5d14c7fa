"""Valid and invalid messages of the protocol."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pipeline.nodes.protocol import (
    VERSION,
    BadMessage,
    CloseCode,
    JobAssign,
    NodeRegister,
    NodeResult,
    SessionResult,
    encode,
    from_node,
    from_session,
    parse,
    to_node,
    to_session,
)

ALL: list[TypeAdapter[Any]] = [from_node, to_node, from_session, to_session]
TYPES = [
    "node_register",
    "node_heartbeat",
    "job_ack",
    "job_result",
    "job_assign",
    "welcome",
    "session_open",
    "job_request",
    "job_partial",
    "error",
]
FIELDS = ["v", "node_id", "job_id", "attempt", "slots", "offers", "attachments", "body", "result", "error", "versions"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_a_null_field_counts_as_absent() -> None:
    job = {
        "type": "job_assign",
        "v": None,
        "job_id": "a",
        "attempt": 1,
        "capability": "vision",
        "model": None,
        "body": {"system": None},
        "timeout_ms": 5,
    }
    pictures = {"attachments": [{"name": None, "media_type": None, "size": 1}]}
    message = parse(json.dumps(job | pictures), to_node)
    assert message == parse(json.dumps(job | {"attachments": [{"size": 1}]}), to_node)
    assert isinstance(message, JobAssign)
    assert (message.model, message.body, message.v) == ("", {"system": None}, VERSION)
    node = {"type": "node_register", "node_id": "a", "slots": 1, "held": None, "name": None}
    first = parse(json.dumps(node | {"offers": [{"capability": "text", "models": None}]}), from_node)
    assert isinstance(first, NodeRegister)
    assert (first.held, first.name, first.offers[0].models) == ((), "", ())


def test_a_required_field_must_not_be_null() -> None:
    with pytest.raises(BadMessage, match="job_id"):
        parse('{"type": "job_ack", "job_id": null, "attempt": 1}', from_node)


@pytest.mark.parametrize("version", ["2", '"1"', "[1]", "{}"])
def test_another_version_closes_with_its_own_code(version: str) -> None:
    with pytest.raises(BadMessage) as caught:
        parse(f'{{"type": "node_heartbeat", "v": {version}}}', from_node)
    assert caught.value.close_code == CloseCode.VERSION


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TYPES), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6), st.sampled_from(ALL))
def test_any_frame_is_a_message_or_unknown_or_bad(name: str, data: dict[str, Any], kind: TypeAdapter[Any]) -> None:
    with suppress(BadMessage):
        parse(json.dumps(data | {"type": name}), kind)


def test_messages_that_cannot_be_forwarded_are_refused() -> None:
    body = f'{{"deep": {"[" * 250}{"]" * 250}}}'
    with pytest.raises(BadMessage, match="too deeply"):
        parse(f'{{"type": "job_request", "request_id": "r", "capability": "text", "body": {body}}}', from_session)


def test_accepted_messages_can_be_forwarded() -> None:
    deep = "[" * 190 + "]" * 190
    body = (
        '{"text": "\\ud83d\\ude00", "nan": NaN, "large": 1e999, "half": "a\\ud83d", "\\udc00": 1, "deep": ' + deep + "}"
    )
    message = parse(f'{{"type": "job_result", "job_id": "j", "attempt": 1, "result": {body}}}', from_node)
    assert isinstance(message, NodeResult)
    passed_on = encode(SessionResult(request_id="r", result=message.result))
    assert "\N{GRINNING FACE}" in passed_on
    assert '"half":"a\N{REPLACEMENT CHARACTER}","\N{REPLACEMENT CHARACTER}":1' in passed_on

"""The overhead of one priced call: the number of Redis commands and of database statements."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import event
from sqlalchemy.engine import Engine

from pipeline.engine import traces
from pipeline.engine.guarded_call import GuardedCall, request_hooks
from pipeline.engine.kept_answers import Subject
from pipeline.providers import calls, gates, spend
from pipeline.providers.openai_compatible import OpenAICompatible
from pipeline.providers.traced_call import Tracer
from pipeline.storage.context import Context
from tests.support.provider_server import Fault, ProviderServer

PROVIDERS = {
    "p": {
        "base_url": "http://127.0.0.1:1/v1",
        "model": "m",
        "limits": "100/min",
        "prices": {"*": {"input": 1.0}},
        "daily_spend_cap": 1000,
    },
    "t": {"base_url": "http://127.0.0.1:1/v1", "model": "m", "limits": "100 tokens/min", "estimated_tokens": 60},
}


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PROVIDERS": json.dumps(PROVIDERS)}


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the commands to Redis and the statements to the database, by name."""
    commands: Counter[str] = Counter()
    execute = Redis.execute_command

    def redis(self: Any, *arguments: Any, **options: Any) -> Any:
        commands["redis"] += 1
        return execute(self, *arguments, **options)

    def sql(*_: Any) -> None:
        commands["sql"] += 1

    event.listen(Engine, "before_cursor_execute", sql)
    with monkeypatch.context() as patch:
        patch.setattr(Redis, "execute_command", redis)
        yield commands
    event.remove(Engine, "before_cursor_execute", sql)


def _admitted(context: Context, queue: str, holder: str, tokens: int = 0) -> GuardedCall:
    guarded = gates.guarded_call(context, queue, holder)
    assert guarded is not None
    assert guarded.gate.admit(holder, tokens=tokens).granted
    return guarded


def _priced_call(context: Context, holder: str) -> None:
    """Do everything that a message with one call does at its gate."""
    guarded = _admitted(context, "vision.p", holder)

    def ask() -> str:
        hooks = request_hooks.get()
        assert hooks is not None
        hooks.ready()
        hooks.sent()
        return "answer"

    assert guarded.call(ask, lambda _: ("m", 1000, 10)) == "answer"
    guarded.leave()


def test_a_priced_call_costs_six_commands_and_no_statement(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    gates.sync(context)
    _priced_call(context, "warm-up")
    with counted(monkeypatch) as commands:
        for number in range(10):
            _priced_call(context, str(number))
    # Admission, stamp, sent, breaker, slot back, cost.
    assert commands == {"redis": 60}
    spent = context.redis.keys("penstock:{gates}:spend:*")
    assert float(str(context.redis.get(spent[0]))) == pytest.approx(11 * 1000 / 1e6)


def test_a_message_without_a_call_gives_back_its_slot_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    gates.sync(context)
    _priced_call(context, "warm-up")
    guarded = gates.guarded_call(context, "vision.p", "m")
    assert guarded is not None
    assert guarded.gate.admit("m").granted
    with counted(monkeypatch) as commands:
        guarded.leave()
        guarded.leave()
    assert commands == {"redis": 1}
    assert guarded.gate.inspect().in_flight == 0


def test_absurd_usage_loses_no_answer_trips_no_cap_and_is_noted_on_the_calls_row(context: Context) -> None:
    gates.sync(context)
    body = {
        "choices": [{"message": {"content": "fine"}}],
        "usage": {"prompt_tokens": 10**15, "completion_tokens": 10**30},
    }
    profile = context.settings.providers["p"]
    with ProviderServer() as server:
        server.push(Fault(status=200, body=body))
        service = OpenAICompatible("p", profile.model_copy(update={"base_url": server.base_url}))
        tracer = Tracer(context, _admitted(context, "vision.p", "a"))
        answer = tracer.call(
            Subject("music", "run", "1"), "text", "describe", "p", "m", ["Hi"], lambda: service.complete("Hi")
        )
    assert answer.text == "fine"
    context.db.run(lambda session: traces.record(session, tracer.trace))
    [row] = calls.calls(context)
    assert (row.status, row.failed) == ("ok", False)
    assert "the service says 10^15 input tokens" in str(row.error)
    assert "10^30 output tokens" in str(row.error)
    assert 0 < row.input_tokens + row.output_tokens < 1_000_000
    assert 0 < spend.running_sum(context, "p", profile) < 1


def test_without_reported_usage_the_estimate_counts(context: Context) -> None:
    gates.sync(context)
    guarded = _admitted(context, "vision.t", "a", tokens=60)

    def ask() -> str:
        hooks = request_hooks.get()
        assert hooks is not None
        hooks.ready()
        hooks.sent()
        return "answer"

    guarded.call(ask, lambda _: ("m", 0, 0))
    guarded.leave()
    assert not guarded.gate.admit("b", tokens=60).granted

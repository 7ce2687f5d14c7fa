"""What one priced call costs beside the call itself: commands to Redis and statements to the database, counted."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import event
from sqlalchemy.engine import Engine

from pipeline.engine.guarded_call import request_hooks
from pipeline.providers import gates
from pipeline.storage.context import Context

PROVIDERS = {
    "p": {
        "base_url": "http://127.0.0.1:1/v1", "model": "m", "limits": "100/min", "prices": {"*": {"input": 1.0}},
        "daily_spend_cap": 1000,
    },
}  # fmt: skip


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PROVIDERS": json.dumps(PROVIDERS)}


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count what goes to Redis and to the database, by name."""
    found: Counter[str] = Counter()
    execute = Redis.execute_command

    def redis(self: Any, *arguments: Any, **options: Any) -> Any:
        found["redis"] += 1
        return execute(self, *arguments, **options)

    def sql(*_: Any) -> None:
        found["sql"] += 1

    event.listen(Engine, "before_cursor_execute", sql)
    with monkeypatch.context() as patch:
        patch.setattr(Redis, "execute_command", redis)
        yield found
    event.remove(Engine, "before_cursor_execute", sql)


def _priced_call(context: Context, holder: str) -> None:
    """Everything that a message with one call does at its gate."""
    guarded = gates.guarded_call(context, "vision.p", holder)
    assert guarded is not None
    assert guarded.gate.admit(holder).granted

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
    with counted(monkeypatch) as found:
        for number in range(10):
            _priced_call(context, str(number))
    # Admission, stamp, sent, breaker, slot back, cost.
    assert found == {"redis": 60}
    spent = context.redis.keys("penstock:{gates}:spend:*")
    assert float(str(context.redis.get(spent[0]))) == pytest.approx(11 * 1000 / 1e6)


def test_a_message_without_a_call_gives_back_its_slot_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    gates.sync(context)
    _priced_call(context, "warm-up")
    guarded = gates.guarded_call(context, "vision.p", "m")
    assert guarded is not None
    assert guarded.gate.admit("m").granted
    with counted(monkeypatch) as found:
        guarded.leave()
        guarded.leave()
    assert found == {"redis": 1}
    assert guarded.gate.look().in_flight == 0

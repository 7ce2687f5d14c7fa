"""The configuration of gates: versions, changed limits, an emptied Redis, differing settings."""

import json
from datetime import datetime, timedelta

import pytest
from sqlalchemy import insert
from sqlalchemy.orm import Session

from pipeline.engine import live_settings
from pipeline.engine.gate import Gate, Scope, Unit, Window
from pipeline.engine.guarded_call import request_hooks
from pipeline.engine.traces import AiCall
from pipeline.process import new_context
from pipeline.providers import gates, queue_control
from pipeline.providers.usage import on_record
from pipeline.storage.context import Context

QUEUE = "vision.p"
PROVIDERS = {"p": {"base_url": "http://127.0.0.1:1/v1", "model": "m", "limits": "20/day"}}


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PROVIDERS": json.dumps(PROVIDERS)}


def _gate(context: Context) -> Gate:
    return gates.gate(context, QUEUE)


def _used(context: Context) -> list[tuple[int, int]]:
    return [(state.window.limit, state.used) for state in _gate(context).inspect().windows]


def _record(
    context: Context, *ages_s: float, queue: str = QUEUE, tokens: int = 0, took_ms: int = 0, now: datetime | None = None
) -> None:
    now = now or context.db.now()
    rows = [
        {
            "flow": "documents",
            "scope_id": "d",
            "unit": "1",
            "capability": "vision",
            "operation": "o",
            "provider": "p",
            "model": "m",
            "status": "ok",
            "queue": queue,
            "input_tokens": tokens,
            "latency_ms": took_ms,
            "created_at": now - timedelta(seconds=age_s),
        }
        for age_s in ages_s
    ]
    context.db.run(lambda session: session.execute(insert(AiCall), rows))


def _through(context: Context, holder: str) -> bool:
    granted = _gate(context).admit(holder).granted and _gate(context).stamp(holder).granted
    _gate(context).finish(holder)
    return granted


def test_an_emptied_redis_does_not_double_a_quota(context: Context) -> None:
    gates.sync(context)
    assert all(_through(context, str(number)) for number in range(15))
    _record(context, *[60.0] * 15)
    context.redis.flushdb()
    gates.sync(context)
    assert _used(context) == [(20, 15)]
    assert sum(_through(context, f"again-{number}") for number in range(20)) == 5


def test_calls_on_record_leave_their_window_at_its_end(context: Context) -> None:
    _record(context, 10, 3600, 86400 - 30, 86400 + 3600)
    _record(context, 10, queue="vision.other")
    queue_control.change_setting(context, f"queue.{QUEUE}.limits", "100/min, 1000 tokens/h")
    _record(context, 10, tokens=70)
    context.redis.flushdb()
    gates.sync(context)
    assert _used(context) == [(100, 2), (1000, 70), (20, 4)]
    queue_control.change_setting(context, "provider.p.limits", "4/day")
    assert 0 < _gate(context).admit("m").wait_s < 20 * 60, "the oldest call leaves the window after a day"


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_calls_on_record_count_despite_a_clock_that_differs_from_the_databases(
    context: Context, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    now = context.db.now
    monkeypatch.setattr(context.db, "now", lambda: now() - timedelta(seconds=ahead_s))
    _record(context, 1.0, now=context.db.now())
    ((age_ms, calls),) = on_record(context, [QUEUE], 60)[Unit.REQUESTS]
    assert (calls, 900 <= age_ms < 50_000) == (1, True)


def test_a_call_counts_from_the_latest_time_at_which_its_request_may_have_left(context: Context) -> None:
    _record(context, 65.0, 62.0, took_ms=4000)
    ((age_ms, calls),) = on_record(context, [QUEUE], 60)[Unit.REQUESTS]
    assert (calls, age_ms < 60_000) == (1, True), "the older call has left its window, whenever it was admitted"


def test_a_call_under_way_when_redis_was_emptied_is_counted_when_it_ends(context: Context) -> None:
    gates.sync(context)
    guarded = gates.guarded_call(context, QUEUE, "m")
    assert guarded is not None
    assert guarded.gate.admit("m").granted

    def ask() -> str:
        hooks = request_hooks.get()
        assert hooks is not None
        hooks.ready()
        hooks.sent()
        context.redis.flushdb()
        gates.sync(context)
        assert _used(context) == [(20, 0)]
        assert guarded.gate.stamp("another").granted
        return "answer"

    assert guarded.call(ask, lambda _: ("m", 1, 1)) == "answer"
    assert _used(context) == [(20, 2)]


def test_a_call_that_ends_before_the_windows_are_back_is_counted_then(context: Context) -> None:
    queue_control.change_setting(context, f"queue.{QUEUE}.limits", "9/h, 1000 tokens/h")
    guarded = gates.guarded_call(context, QUEUE, "m")
    assert guarded is not None
    guarded.tokens = 100
    assert guarded.gate.admit("m", tokens=100).granted

    def ask() -> str:
        hooks = request_hooks.get()
        assert hooks is not None
        hooks.ready()
        hooks.sent()
        context.redis.flushdb()
        return "answer"

    assert guarded.call(ask, lambda _: ("m", 70, 10)) == "answer"
    guarded.leave()
    assert _gate(context).admit("too early").reason == "unready"
    _gate(context).inspect()
    gates.sync(context)
    assert _used(context) == [(9, 1), (1000, 80), (20, 1)]


def test_the_older_configuration_never_overwrites_the_newer(context: Context) -> None:
    scope = Scope(context.redis, "queue:q")
    assert scope.configure([Window(5, 60)], 2, {"operator_until": -1}, version=7)
    assert not scope.configure([Window(50, 60)], None, {"operator_until": ""}, version=6)
    held = context.redis.hgetall(scope.keys[0])
    assert (held["limit1"], held["concurrency"], held["operator_until"]) == ("5", "2", "-1")
    assert scope.configure([Window(6, 60)], None, version=7)
    assert context.redis.hget(scope.keys[0], "limit1") == "6"


def test_limits_that_change_forget_no_usage(context: Context) -> None:
    gate = _gate(context)
    tokens, requests = Window(1000, 60, Unit.TOKENS), Window(5, 10)
    gate.shared.configure([], None)
    gate.own.configure([requests], None)
    granted = 0
    for turn in range(4):
        gate.own.configure([tokens, requests] if turn % 2 else [requests], None)
        granted += sum(_through(context, f"{turn}-{number}") for number in range(5))
    assert granted == 5, "five in any ten seconds"
    gate.own.configure([Window(9, 5), Window(7, 3600)], None)
    assert [state.used for state in gate.inspect().queue.windows] == [5, 5]


def test_processes_with_different_settings_use_those_of_the_last_started_worker(context: Context) -> None:
    def other(limits: str) -> Context:
        profile = context.settings.providers["p"].model_copy(update={"limits": limits})
        return new_context(context.settings.model_copy(update={"providers": {"p": profile}}))

    newer = other("50/day")
    try:
        gates.publish_defaults(context)
        gates.sync(context)
        gates.sync(newer)
        assert _used(context) == [(20, 0)], "a command with other settings changes nothing"
        gates.publish_defaults(newer)
        assert gates.sync(context)
        for _ in range(3):
            assert not gates.sync(newer)
            assert not gates.sync(context)
        assert _used(context) == _used(newer) == [(50, 0)]
        assert gates.live_setting(context, "provider.p.limits").value == "50/day"
    finally:
        newer.db.dispose()
        newer.redis.connection_pool.disconnect()


def test_a_sync_with_outdated_rows_does_not_overwrite_newer_settings(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates.sync(context)
    stored = live_settings.stored

    def late(session: Session) -> dict[str, str]:
        rows = stored(session)
        monkeypatch.setattr(live_settings, "stored", stored)
        queue_control.change_setting(context, "provider.p.limits", "7/day")
        return rows

    context.redis.delete(gates.APPLIED)
    monkeypatch.setattr(live_settings, "stored", late)
    gates.sync(context)
    assert _used(context) == [(7, 0)]
    gates.sync(context)
    assert _used(context) == [(7, 0)]

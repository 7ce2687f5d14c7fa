"""Gates and the database: limits, pauses, breakers and spend caps survive an emptied Redis and edits of the table."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import OperationalError

from pipeline.engine import live_settings
from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.engine.gate import Gate
from pipeline.engine.guarded_call import request_hooks
from pipeline.engine.traces import AiCall
from pipeline.providers import gates, queue_control, queue_views, watchdog
from pipeline.providers.queue_views import Holdup
from pipeline.storage.context import Context
from tests.support.calls import call_row

PROVIDERS = {
    "p": {"base_url": "http://127.0.0.1:1/v1", "model": "m", "limits": "3/min", "prices": {"*": {"input": 1e6}}},
    "q": {"base_url": "http://127.0.0.1:1/v1", "model": "m"},
}


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PROVIDERS": json.dumps(PROVIDERS)}


def _gate(context: Context, queue: str = "vision.p") -> Gate:
    return gates.gate(context, queue)


def _used(context: Context) -> list[tuple[int, int]]:
    return [(state.window.limit, state.used) for state in _gate(context).inspect().windows]


def test_a_profiles_limits_are_in_force_from_the_first_sync(context: Context) -> None:
    assert gates.sync(context)
    assert _used(context) == [(3, 0)]
    assert not gates.sync(context), "nothing changed"


def test_a_changed_limit_is_in_force_at_once_and_keeps_its_use(context: Context) -> None:
    gates.sync(context)
    assert _gate(context).admit("a").granted
    assert _gate(context).stamp("a").granted
    queue_control.change_setting(context, "provider.p.limits", "5/min")
    assert _used(context) == [(5, 1)]
    assert queue_control.reset_setting(context, "provider.p.limits") == "3/min"
    assert _used(context) == [(3, 1)]


@pytest.mark.parametrize("value", ["0/s", "-3/min", "lots", "1/s 2/s"])
def test_an_invalid_limit_is_refused(context: Context, value: str) -> None:
    with pytest.raises(UserError):
        queue_control.change_setting(context, "provider.p.limits", value)
    assert gates.live_setting(context, "provider.p.limits").is_default


def test_unknown_queues_settings_and_breakers_are_named(context: Context) -> None:
    for ask in (
        lambda: queue_control.pause(context, "vision.z", None),
        lambda: queue_control.change_setting(context, "queue.vision.z.limits", "1/s"),
        lambda: gates.require_breaker(context, "z:vision"),
    ):
        with pytest.raises(UserError, match=r"vision\.z|z:vision"):
            ask()
    with pytest.raises(UserError, match=r"^vision\.z is not a queue with a gate; these are: .*vision\.p"):
        context.gates.require("vision.z")


def test_a_row_edited_to_nonsense_leaves_the_old_value_in_force_and_shows_an_error(context: Context) -> None:
    queue_control.change_setting(context, "provider.p.limits", "7/min")
    for nonsense in ('"many"', "not json", "[1]"):
        context.db.run(
            lambda session, row=nonsense: session.merge(
                live_settings.SystemSetting(key="provider.p.limits", value=row, updated_at=datetime.now(UTC))
            )
        )
        gates.sync(context)
        assert _used(context) == [(7, 0)], nonsense
        assert gates.live_setting(context, "provider.p.limits").error


def test_pauses_limits_and_breakers_return_after_redis_is_emptied(context: Context) -> None:
    queue_control.change_setting(context, "provider.p.limits", "7/min")
    queue_control.pause(context, "vision.p", None, "maintenance")
    breaker = gates.breaker(context, "q:vision")
    breaker.open(600, "rate limit")
    gates.remember_breaker(context, "q:vision", breaker.inspect())
    context.redis.flushdb()
    assert _gate(context).admit("a").reason == "unready"
    assert gates.sync(context)
    assert _gate(context).admit("a").reason == "operator"
    assert _used(context) == [(7, 0)]
    assert _gate(context, "vision.q").admit("a").reason == "breaker"
    assert 500 < gates.breaker(context, "q:vision").inspect().left_s <= 600


def test_a_pause_ends_when_resumed_and_by_its_time(context: Context) -> None:
    queue_control.pause(context, "vision.p", 0.001)
    queue_control.pause(context, "vision.q", None)
    assert _gate(context, "vision.q").admit("a").reason == "operator"
    queue_control.resume(context, "vision.q")
    assert _gate(context, "vision.q").admit("a").granted
    assert _gate(context).admit("a").granted, "its time is over"
    assert watchdog.end_expired(context) == ["vision.p"]
    assert not watchdog.end_expired(context)


def test_the_watchdog_never_ends_an_operators_pause(context: Context) -> None:
    queue_control.pause(context, "vision.p", None)
    gates.breaker(context, "p:vision").open(0.001, "down")
    while gates.breaker(context, "p:vision").inspect().state == "open":
        pass
    assert watchdog.end_expired(context) == ["vision.p"]
    assert _gate(context).admit("a").reason == "operator"


def test_a_spend_cap_closes_all_queues_of_its_provider_until_the_day_ends(context: Context) -> None:
    queue_control.change_setting(context, "provider.p.daily_spend_cap", "10")
    gates.charge(context, "p", 9.5)
    assert _gate(context).admit("a").granted
    gates.charge(context, "p", 0.5)
    refused = _gate(context).admit("b")
    assert refused.reason == "spend"
    assert 0 < refused.wait_s <= 86400
    assert _gate(context, "vision.q").admit("a").granted
    queue_control.change_setting(context, "provider.p.daily_spend_cap", "100")


def test_spending_is_restored_from_the_traces(context: Context) -> None:
    now = datetime.now(UTC)
    row = {
        "flow": "documents",
        "scope_id": "d",
        "unit": "1",
        "capability": "vision",
        "operation": "o",
        "provider": "p",
        "model": "m",
        "status": "ok",
        "created_at": now,
        "cost": 12.0,
    }
    context.db.run(lambda session: session.execute(insert(AiCall), [row]))
    queue_control.change_setting(context, "provider.p.daily_spend_cap", "10")
    assert _gate(context).admit("a").reason == "spend"
    queue_control.change_setting(context, "provider.p.daily_spend_cap", "0")
    assert _gate(context).admit("a").granted


def test_a_guarded_call_that_finds_the_gate_closed_makes_no_call(context: Context) -> None:
    gates.sync(context)
    assert _gate(context).admit("holder").granted
    queue_control.pause(context, "vision.p", None)
    guarded = gates.guarded_call(context, "vision.p", "holder")
    assert guarded is not None

    def ask() -> str:
        hooks = request_hooks.get()
        assert hooks is not None
        hooks.ready()
        pytest.fail("the call was made")

    with pytest.raises(UnitError) as caught:
        guarded.call(ask, lambda _: ("m", 0, 0))
    assert caught.value.code == "gate_closed"
    assert caught.value.kind is ErrorKind.RATE_LIMITED
    assert _gate(context).inspect().in_flight == 0


def test_a_queues_own_limit_holds_beside_its_providers(context: Context) -> None:
    queue_control.change_setting(context, "queue.vision.p.limits", "2/min")
    assert _used(context) == [(2, 0), (3, 0)]
    assert [_gate(context).stamp(str(n)).granted for n in range(3)] == [True, True, False]
    queue_control.reset_setting(context, "queue.vision.p.limits")
    assert [_gate(context).stamp(str(n)).granted for n in range(2)] == [True, False], (
        "three calls of the provider's limit"
    )


def test_a_queue_names_the_reason_of_its_wait(context: Context) -> None:
    gates.sync(context)
    assert gates.closed_because(context, "vision.p") == ""
    assert gates.closed_because(context, "cpu") == "", "a queue without a gate"
    gates.breaker(context, "p:vision").open(60, "5 failures in a row: connect")
    assert gates.closed_because(context, "vision.p") == "p is paused by its breaker (5 failures in a row: connect)"
    queue_control.pause(context, "vision.p", None)
    assert gates.closed_because(context, "vision.p") == "vision.p is paused by an operator"


def test_a_holdup_names_its_reason_and_its_end(context: Context) -> None:
    def holdup_of_call() -> Holdup | None:
        return queue_views.holdup(queue_views.queue(context, "vision.p"), now)

    now = context.db.now()
    assert holdup_of_call() is None
    assert [_gate(context).stamp(str(n)).granted for n in range(3)] == [True, True, True]
    held = holdup_of_call()
    assert held is not None
    assert held.until is not None
    assert (held.kind, held.words) == ("limits", "p: 3/min is used up")
    # Our window is slightly longer than the provider's, since the way to the provider varies.
    assert timedelta(seconds=50) < held.until - now < timedelta(seconds=62)
    queue_control.change_setting(context, "provider.p.limits", "9/min")
    assert holdup_of_call() is None
    queue_control.change_setting(context, "provider.p.concurrency", "1")
    assert holdup_of_call() == Holdup("capacity", "vision.p: the only place is taken")
    queue_control.open_breaker(context, "p:vision", 60, "5 failures in a row: 503")
    held = holdup_of_call()
    assert held is not None
    assert (held.kind, held.words) == ("breaker", "p is paused by its breaker: 5 failures in a row: 503")
    queue_control.pause(context, "vision.p", None, "invoices first")
    assert holdup_of_call() == Holdup("operator", "paused by an operator: “invoices first”")


def test_simultaneous_writes_of_a_breaker_leave_one_row(context: Context) -> None:
    breaker = gates.breaker(context, "p:vision")
    breaker.open(60, "down")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: gates.remember_breaker(context, "p:vision", breaker.inspect()), range(40)))
    with context.db.read() as session:
        assert [key for key in live_settings.stored(session) if key.startswith("breaker.")] == ["breaker.p:vision"]


def test_an_answer_is_returned_although_the_database_refuses_the_breakers_close(context: Context) -> None:
    gates.sync(context)
    gates.breaker(context, "p:vision").open(0.001, "down")
    while gates.breaker(context, "p:vision").inspect().state != "half-open":
        pass
    guarded = gates.guarded_call(context, "vision.p", "holder")
    assert guarded is not None

    def forget(_: object) -> None:
        raise OperationalError("DELETE", {}, Exception("the database is away"))

    def ask() -> str:
        hooks = request_hooks.get()
        assert hooks is not None
        hooks.ready()
        return "paid for"

    assert replace(guarded, on_change=forget).call(ask, lambda _: ("m", 0, 0)) == "paid for"


def test_small_amounts_are_shown_with_enough_digits(context: Context) -> None:
    queue_control.change_setting(context, "provider.p.daily_spend_cap", "0.0005")
    gates.charge(context, "p", 0.00071)
    assert "0.00071 of 0.00050 spent today" in str(gates.closed_because(context, "vision.p"))
    with context.db.transaction() as session:
        session.execute(insert(AiCall), [call_row("p", datetime.now(UTC), cost=1234.5)])
    queue_control.change_setting(context, "provider.p.daily_spend_cap", "0.0006")
    assert "1234.5000 of 0.00060 spent today" in str(gates.closed_because(context, "vision.p"))

"""The gate: one atomic admission over pauses, breaker, windows and concurrency."""

import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from pipeline.engine.breaker import Breaker, BreakerPolicy
from pipeline.engine.connection import connect
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.gate import FOR_EVER, Gate, StampedCall, Unit, Window
from tests.support.waiting import wait_until


@pytest.fixture
def redis(redis_url: str) -> Iterator["Redis"]:
    client = connect(redis_url)
    yield client
    client.close()


@pytest.fixture
def gate(redis: "Redis") -> Gate:
    new_gate = Gate(redis, "vision.p", "p:vision", slot_ttl_s=60)
    new_gate.own.configure([], None)
    new_gate.shared.configure([], None)
    return new_gate


def _through(gate: Gate, holder: str, tokens: int = 0) -> bool:
    if not (gate.admit(holder, tokens=tokens).granted and gate.stamp(holder, tokens=tokens).granted):
        return False
    gate.sent(holder)
    return True


def test_a_gate_with_unknown_limits_admits_no_call(redis: "Redis") -> None:
    unset = Gate(redis, "vision.q", "q:vision", slot_ttl_s=60)
    assert unset.admit("a").reason == "unready"
    assert unset.stamp("a").reason == "unready"
    unset.own.configure([], None)
    assert unset.admit("a").reason == "unready", "its provider's limits are unknown"
    unset.shared.configure([], None)
    assert unset.admit("a").granted


def test_a_window_admits_its_limit_and_says_how_long_to_wait(gate: Gate) -> None:
    gate.own.configure([Window(3, 60)], None)
    assert [_through(gate, str(n)) for n in range(4)] == [True, True, True, False]
    refused = gate.admit("late")
    assert refused.reason == "limit"
    assert 50 < refused.wait_s < 62


def test_reservations_count_until_they_are_given_back(gate: Gate) -> None:
    gate.own.configure([Window(2, 60)], None)
    assert gate.admit("a").granted
    assert gate.admit("b").granted
    assert not gate.admit("c").granted
    gate.finish("a")
    assert gate.admit("c").granted
    gate.finish("b")
    gate.finish("c")
    assert gate.inspect().windows[0].used == 0


def test_a_repeated_admission_of_a_holder_takes_no_second_slot(gate: Gate) -> None:
    gate.own.configure([Window(1, 60)], 1)
    assert gate.admit("a").granted
    assert gate.admit("a").granted
    assert gate.inspect().in_flight == 1


def test_a_call_that_is_early_waits_for_its_stamp(gate: Gate, redis: "Redis") -> None:
    gate.own.configure([Window(1, 0.5)], None)

    def now() -> float:
        seconds, micros = redis.time()
        return float(seconds) + float(micros) / 1e6

    assert _through(gate, "first")
    stamped = now()
    wait_until(lambda: gate.admit("second").granted, 60, "its stamp is near")
    admitted = now()
    assert gate.stamp("second").granted
    assert now() - stamped > 0.499, "the window has room, give or take a millisecond of rounding"
    assert admitted < now()
    assert gate.admit("third").reason == "limit"


def test_a_call_leaves_its_window_by_the_time_when_it_was_sent(gate: Gate) -> None:
    gate.own.configure([Window(1, 1)], None)
    assert gate.admit("slow").granted
    assert gate.stamp("slow").granted
    time.sleep(1.5)  # connecting takes longer than the window
    assert gate.admit("next").reason == "limit", "the provider has not seen the first call"
    gate.sent("slow")
    assert gate.inspect().windows[0].used == 1
    assert gate.admit("next").reason == "limit"
    wait_until(lambda: gate.admit("next").granted, 60, "the sent call leaves its window")


def test_a_call_that_the_provider_may_have_seen_late_leaves_its_window_later(gate: Gate, redis: "Redis") -> None:
    gate.own.configure([Window(9, 60)], None)

    def moved_ms(holder: str, took_s: float) -> float:
        """Return how far the answer moves a call that took `took_s` seconds, in milliseconds."""
        assert gate.admit(holder).granted
        stamp = gate.stamp(holder).stamp
        gate.sent(holder)
        key, member = gate.own.keys[3], f"{stamp}:1"
        before = redis.zscore(key, member)
        gate.finish(holder, call=StampedCall(stamp, 1, 0, took_s))
        after = redis.zscore(key, member)
        assert before is not None
        assert after is not None
        return float(after) - float(before)

    took_s = [0.3, 0.312, 0.9, 0.25, 0.255, 0.3]
    moved = [moved_ms(str(number), took) for number, took in enumerate(took_s)]
    assert moved == pytest.approx([0, 12, 20, 0, 5, 20], abs=2)
    assert gate.inspect().windows[0].used == len(took_s)


def test_a_redelivered_message_s_call_leaves_its_window_by_its_sending(gate: Gate, redis: "Redis") -> None:
    gate.own.configure([Window(9, 60)], None)
    assert gate.admit("slow").granted
    stamp = gate.stamp("slow").stamp
    assert gate.admit("slow").granted, "its message was redelivered"
    key, member = gate.own.keys[3], f"{stamp}:1"
    too_early = redis.zscore(key, member)
    assert too_early is not None

    def now_ms() -> float:
        seconds, micros = redis.time()
        return seconds * 1000 + micros // 1000

    wait_until(lambda: now_ms() > too_early, 60, "the clock goes on")
    gate.sent("slow", StampedCall(stamp, 1, 0, 0.0))
    assert (redis.zscore(key, member) or 0) > too_early


def test_a_stamped_call_counts_without_a_report_that_it_was_sent(gate: Gate) -> None:
    gate.own.configure([Window(2, 60)], None)
    for holder in ("a", "b"):
        assert gate.admit(holder).granted
        assert gate.stamp(holder).granted
        gate.finish(holder)
    assert gate.inspect().windows[0].used == 2
    assert not gate.admit("c").granted


@pytest.mark.parametrize("limits_are_back", [True, False], ids=["limits are back", "limits are unknown"])
def test_a_call_that_is_sent_after_redis_was_emptied_counts_at_once(
    gate: Gate, redis: "Redis", *, limits_are_back: bool
) -> None:
    def configure() -> None:
        gate.own.configure([Window(1, 60)], None)
        gate.shared.configure([], None)

    configure()
    assert gate.admit("slow").granted
    stamp = gate.stamp("slow").stamp
    redis.flushdb()
    if limits_are_back:
        configure()
    gate.sent("slow", StampedCall(stamp, 1, 0, 0.0))
    configure()
    assert gate.admit("next").reason == "limit", "the call is under way"


def test_stamps_stay_when_the_call_is_done(gate: Gate) -> None:
    gate.own.configure([Window(1, 60)], None)
    assert _through(gate, "a")
    gate.finish("a")
    assert not gate.admit("b").granted
    assert gate.inspect().in_flight == 0


def test_a_stamp_without_a_reservation_needs_room(gate: Gate) -> None:
    gate.own.configure([Window(1, 60)], None)
    assert gate.stamp("a").granted
    assert gate.stamp("b").reason == "limit"
    assert gate.inspect().in_flight == 1


def test_several_windows_hold_at_once_in_requests_and_tokens(gate: Gate) -> None:
    gate.own.configure([Window(10, 60), Window(3, 3600), Window(100, 60, Unit.TOKENS)], None)
    assert _through(gate, "a", tokens=60)
    assert not gate.admit("b", tokens=60).granted
    assert _through(gate, "b", tokens=30)
    assert _through(gate, "c", tokens=1)
    assert not gate.admit("d", tokens=1).granted, "three an hour"


def test_estimated_tokens_are_corrected_by_the_usage(gate: Gate) -> None:
    gate.own.configure([Window(100, 60, Unit.TOKENS)], None)
    assert _through(gate, "a", tokens=80)
    gate.finish("a", extra_tokens=-70)
    assert gate.inspect().windows[0].used == 10
    assert _through(gate, "b", tokens=80)
    gate.finish("b", extra_tokens=40)
    assert gate.inspect().windows[0].used == 130
    assert not gate.admit("c", tokens=1).granted


def test_a_call_larger_than_the_window_has_it_to_itself(gate: Gate) -> None:
    gate.own.configure([Window(100, 60, Unit.TOKENS)], None)
    assert _through(gate, "a", tokens=5000)
    assert not gate.admit("b", tokens=1).granted


def test_queues_of_one_provider_share_its_windows_and_slots(gate: Gate, redis: "Redis") -> None:
    other = Gate(redis, "metadata", "p:text", slot_ttl_s=60)
    other.own.configure([Window(2, 60)], None)
    gate.shared.configure([Window(3, 60), Window(100, 60, Unit.TOKENS)], 2)
    assert _through(gate, "a", tokens=10)
    assert other.admit("b", tokens=20).granted
    assert gate.admit("c").reason == "concurrency"
    gate.finish("a", extra_tokens=5)
    assert gate.admit("c").granted
    assert other.admit("d").reason == "limit", "three calls allowed: one is stamped, two are reserved"
    other.finish("b")
    assert _through(other, "d", tokens=50)
    assert [window.used for window in other.inspect().provider.windows] == [2, 65]
    assert [window.used for window in other.inspect().queue.windows] == [1]
    assert (gate.inspect().in_flight, other.inspect().provider.in_flight) == (1, 2)


def test_a_window_with_a_new_unit_starts_empty(gate: Gate) -> None:
    gate.own.configure([Window(100_000, 3600, Unit.TOKENS)], None)
    assert _through(gate, "a", tokens=5000)
    gate.own.configure([Window(10, 3600)], None)
    assert _through(gate, "b")
    assert gate.inspect().windows[0].used == 1


def test_concurrency_counts_until_finish_and_ends_with_its_time(redis: "Redis") -> None:
    gate = Gate(redis, "vision.p", "p:vision", slot_ttl_s=1)
    gate.own.configure([], 1)
    gate.shared.configure([], None)
    assert _through(gate, "killed")
    assert gate.admit("next").reason == "concurrency"
    wait_until(lambda: gate.admit("next").granted, 60, "the slot of a killed worker is free")


def test_the_limit_holds_in_every_sliding_window_for_many_callers(gate: Gate, redis_url: str) -> None:
    gate.own.configure([Window(20, 0.5)], None)
    granted: list[float] = []
    ends = time.monotonic() + 60

    def ask(number: int) -> None:
        client = connect(redis_url)
        own = Gate(client, gate.queue, "p:vision", 60)
        turn = 0
        while len(granted) <= 60 and time.monotonic() < ends:
            turn += 1
            holder = f"{number}-{turn}"
            if own.admit(holder).granted and own.stamp(holder).granted:
                seconds, micros = client.time()  # as the provider may see the call: after its stamp, before it is sent
                own.sent(holder)
                granted.append(seconds + micros / 1e6)
            own.finish(holder)
        client.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    granted.sort()
    assert len(granted) > 60
    assert all(later - first > 0.498 for first, later in zip(granted, granted[20:], strict=False))


def test_an_operators_pause_and_a_breaker_end_separately(gate: Gate, redis: "Redis") -> None:
    breaker = Breaker(redis, "p:vision", BreakerPolicy())
    gate.own.close("operator", FOR_EVER, "maintenance")
    breaker.open(60, "rate limit")
    assert gate.admit("a").reason == "operator"
    gate.own.reopen("operator")
    assert gate.admit("a").reason == "breaker"
    gate.own.close("operator", FOR_EVER)
    breaker.close()
    assert gate.admit("a").reason == "operator"
    gate.own.reopen("operator")
    assert gate.admit("a").granted


def test_a_pause_in_the_past_counts_as_ended(gate: Gate) -> None:
    gate.own.close("operator", int(time.time() * 1000) - 1)
    assert gate.admit("a").granted


def test_a_gate_that_closed_after_the_admission_refuses_the_call(gate: Gate) -> None:
    assert gate.admit("a").granted
    gate.own.close("operator", FOR_EVER)
    assert gate.stamp("a").reason == "operator"
    assert gate.inspect().in_flight == 0


def test_a_half_open_breaker_admits_exactly_one_probe(gate: Gate, redis: "Redis") -> None:
    breaker = Breaker(redis, "p:vision", BreakerPolicy())
    breaker.open(0.01, "down")
    wait_until(lambda: breaker.inspect().state == "half-open", 60, "its time is over")
    assert sum(gate.admit(f"holder-{n}").granted for n in range(20)) == 1
    assert breaker.half_open_if_due()
    assert not breaker.half_open_if_due()


def test_a_released_probe_admits_the_next(gate: Gate, redis: "Redis") -> None:
    Breaker(redis, "p:vision", BreakerPolicy()).open(0.001, "down")
    wait_until(lambda: gate.admit("a").granted, 60, "its time is over")
    assert gate.admit("b").reason == "probe"
    gate.finish("a")
    assert gate.admit("b").granted


def _transient() -> UnitError:
    return UnitError("down", kind=ErrorKind.TRANSIENT, code="timeout")


def test_failures_in_a_row_open_the_breaker_for_longer_and_longer(redis: "Redis") -> None:
    breaker = Breaker(redis, "p:vision", BreakerPolicy(fail_max=3, cool_down_s=10, longest_s=25))
    assert [breaker.failed(_transient(), lambda now: now) for _ in range(3)] == [0.0, 0.0, 10.0]
    redis.hset("penstock:{gates}:breaker:p:vision", "until", 1)
    assert breaker.failed(_transient(), lambda now: now) == 20.0
    redis.hset("penstock:{gates}:breaker:p:vision", "until", 1)
    assert breaker.failed(_transient(), lambda now: now) == 25.0


def test_a_success_resets_the_count_of_failures(redis: "Redis") -> None:
    breaker = Breaker(redis, "p:vision", BreakerPolicy(fail_max=2))
    breaker.failed(_transient(), lambda now: now)
    breaker.succeeded()
    assert breaker.failed(_transient(), lambda now: now) == 0.0
    assert breaker.inspect().state == "closed"


def test_a_call_under_way_when_it_opened_does_not_close_it(redis: "Redis") -> None:
    breaker = Breaker(redis, "p:vision", BreakerPolicy())
    breaker.failed(UnitError("slow down", kind=ErrorKind.RATE_LIMITED, retry_after_s=30), lambda now: now)
    assert not breaker.succeeded()
    assert breaker.inspect().state == "open"


def test_a_success_raises_no_error_while_another_process_opens_the_breaker(
    redis: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker, other = (Breaker(redis, "p:vision", BreakerPolicy(fail_max=2)) for _ in range(2))
    breaker.failed(_transient(), lambda now: now)
    register = redis.register_script

    def opened_once_read(source: str) -> object:
        act = register(source)

        def run(**arguments: Any) -> object:
            result = act(**arguments)
            if "has just succeeded" in source:
                other.open(30, "rate limit")
            return result

        return run

    monkeypatch.setattr(redis, "register_script", opened_once_read)
    assert not breaker.succeeded()
    assert breaker.inspect().state == "open"


def test_a_quota_s_day_ends_by_the_clock_of_redis(redis: "Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    breaker = Breaker(redis, "p:vision", BreakerPolicy())
    seconds, micros = redis.time()
    reset_times: list[datetime] = []

    def reset(now: datetime) -> datetime:
        reset_times.append(now)
        return now + timedelta(minutes=30)

    monkeypatch.setattr(redis, "time", lambda: (seconds + 3600, micros))
    breaker.failed(UnitError("no more today", kind=ErrorKind.QUOTA), reset)
    assert [now.timestamp() for now in reset_times] == [pytest.approx(seconds + 3600 + micros / 1e6)]


def test_a_rate_limit_that_names_no_wait_opens_for_two_minutes(redis: "Redis") -> None:
    breaker = Breaker(redis, "p:vision", BreakerPolicy())
    assert breaker.failed(UnitError("429", kind=ErrorKind.RATE_LIMITED), lambda now: now) == pytest.approx(120)
    assert breaker.inspect().reason == "rate limit"


def test_a_refusal_with_its_own_code_is_named_by_it(redis: "Redis") -> None:
    breaker = Breaker(redis, "p:vision", BreakerPolicy())
    breaker.failed(UnitError("no node", kind=ErrorKind.RATE_LIMITED, code="no_node"), lambda now: now)
    assert breaker.inspect().reason == "no node"


def test_a_bad_request_does_not_count_against_the_provider(redis: "Redis") -> None:
    breaker = Breaker(redis, "p:vision", BreakerPolicy(fail_max=1))
    assert breaker.failed(UnitError("bad", kind=ErrorKind.PERMANENT), lambda now: now) == 0.0
    assert breaker.inspect().state == "closed"

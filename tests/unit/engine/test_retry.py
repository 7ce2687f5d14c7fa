from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.retry import Drop, GiveUp, Policy, Release, RetryAt, decide

NOW = datetime(2026, 1, 20, 12, 0, tzinfo=UTC)
EXACT = Policy((5.0, 15.0, 60.0), jitter=0)

tables = st.lists(st.floats(min_value=0, max_value=86_400), max_size=20).map(tuple)
kinds = st.sampled_from(ErrorKind)


def error(kind: ErrorKind, retry_after_s: float | None = None) -> UnitError:
    return UnitError("it failed", kind=kind, retry_after_s=retry_after_s)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_there_is_one_attempt_more_than_there_are_waits() -> None:
    assert EXACT.max_attempts == 4
    assert Policy(()).max_attempts == 1


def test_retries_use_the_tables_waits_in_turn_and_then_give_up() -> None:
    decisions = [decide(error(ErrorKind.TRANSIENT), attempt, NOW, EXACT) for attempt in (1, 2, 3, 4, 5)]
    assert decisions == [RetryAt(after(5)), RetryAt(after(15)), RetryAt(after(60)), GiveUp(), GiveUp()]


def test_without_a_table_the_first_transient_error_is_the_last() -> None:
    assert decide(error(ErrorKind.TRANSIENT), 1, NOW, Policy(())) == GiveUp()


@pytest.mark.parametrize("attempt", [1, 4, 100])
def test_a_permanent_error_is_never_retried(attempt: int) -> None:
    assert decide(error(ErrorKind.PERMANENT, retry_after_s=1), attempt, NOW, EXACT) == GiveUp()


@pytest.mark.parametrize("kind", [ErrorKind.RATE_LIMITED, ErrorKind.QUOTA])
@pytest.mark.parametrize("attempt", [1, 4, 100])
def test_a_rate_limit_never_uses_up_the_attempts(kind: ErrorKind, attempt: int) -> None:
    assert decide(error(kind, retry_after_s=7), attempt, NOW, EXACT) == Release(NOW), "the gate waits, not the row"


@pytest.mark.parametrize("attempt", [1, 4, 100])
def test_a_cancelled_unit_is_dropped(attempt: int) -> None:
    assert decide(error(ErrorKind.CANCELLED), attempt, NOW, EXACT) == Drop()


@pytest.mark.parametrize("asked_s", [0, 0.5, 3600])
def test_the_server_s_own_wait_wins_over_the_table(asked_s: float) -> None:
    policy = Policy((5.0,), jitter=0.9)
    assert decide(error(ErrorKind.TRANSIENT, asked_s), 1, NOW, policy) == RetryAt(after(asked_s))


def test_a_server_that_asks_to_come_back_does_not_add_attempts() -> None:
    assert decide(error(ErrorKind.TRANSIENT, retry_after_s=1), 4, NOW, EXACT) == GiveUp()


@given(tables.filter(bool), st.floats(min_value=0, max_value=1), st.data())
def test_jitter_adds_at_most_its_part_and_never_shortens_a_wait(
    table: tuple[float, ...], jitter: float, data: st.DataObject
) -> None:
    attempt = data.draw(st.integers(1, len(table)))
    wait_s = Policy(table, jitter).wait_s(attempt)
    assert table[attempt - 1] <= wait_s <= table[attempt - 1] * (1 + jitter)


def test_a_burst_of_failures_does_not_return_as_a_burst() -> None:
    waits = {Policy((60.0,)).wait_s(1) for _ in range(100)}
    assert len(waits) > 90


@given(tables, kinds, st.integers(1, 50), st.none() | st.floats(min_value=0, max_value=1e6))
def test_a_decision_never_lies_in_the_past_and_attempts_are_bounded(
    table: tuple[float, ...], kind: ErrorKind, attempt: int, asked_s: float | None
) -> None:
    policy = Policy(table)
    decision = decide(error(kind, asked_s), attempt, NOW, policy)
    if isinstance(decision, RetryAt | Release):
        assert decision.at >= NOW
    if isinstance(decision, RetryAt):
        assert attempt < policy.max_attempts


def test_an_error_that_says_nothing_about_itself_is_transient() -> None:
    assert UnitError("who knows").kind is ErrorKind.TRANSIENT

"""The watchdog's decisions about recent calls, as pure functions."""

from datetime import UTC, datetime, timedelta

import pytest

from pipeline.providers.watchdog import Opening, RecentCall, has_recovered, opening
from pipeline.settings import ProviderProfile

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RESET = NOW + timedelta(hours=4)
PROFILE = ProviderProfile(breaker_fail_max=3, breaker_longest_s=100)
THREE_FAILED = Opening(0.0, "3 failures in a row on record")


def _calls(*calls: tuple[str, float, float]) -> list[RecentCall]:
    """Return calls, newest first, from (status, seconds since its start, seconds since its end)."""
    return [
        RecentCall(100 - n, status, NOW - timedelta(seconds=started), NOW - timedelta(seconds=ended))
        for n, (status, started, ended) in enumerate(calls)
    ]


def _opening(*calls: tuple[str, float, float]) -> Opening | None:
    return opening(_calls(*calls), PROFILE, lambda _: RESET, NOW)


def _row(*statuses: str) -> list[tuple[str, float, float]]:
    return [(status, n + 2, n + 1) for n, status in enumerate(statuses)]


@pytest.mark.parametrize(
    "statuses",
    [
        [],
        ["ok"],
        ["transient"] * 2,
        ["ok"] + ["transient"] * 5,
        ["transient", "transient", "ok", "transient"],
        ["transient", "transient", "permanent", "transient"],
    ],
)
def test_too_few_failures_or_failures_apart_leave_the_breaker_closed(statuses: list[str]) -> None:
    assert _opening(*_row(*statuses)) is None


@pytest.mark.parametrize("before", [[], ["ok"], ["permanent"], ["transient"]])
def test_enough_failures_in_a_row_open_the_breaker_for_its_cool_down(before: list[str]) -> None:
    assert _opening(*_row("transient", "transient", "transient", *before)) == THREE_FAILED


def test_failures_longer_ago_than_the_longest_cool_down_open_nothing() -> None:
    assert _opening(*(("transient", 110 + n, 99 + n) for n in range(3))) == THREE_FAILED
    assert _opening(*(("transient", 110 + n, 101 + n) for n in range(3))) is None


def test_a_refusal_opens_the_breaker_for_the_rest_of_its_wait() -> None:
    assert _opening(("rate_limited", 31, 30)) == Opening(90, "rate limit")
    assert _opening(("rate_limited", 122, 121)) is None
    assert _opening(("quota", 3700, 3600)) == Opening(RESET.timestamp() - NOW.timestamp(), "daily quota")


def test_a_quota_comes_before_a_rate_limit_that_ends_earlier() -> None:
    assert _opening(("rate_limited", 2, 1), ("quota", 4, 3)) == Opening(4 * 3600, "daily quota")


def test_a_quota_that_was_reset_since_opens_nothing() -> None:
    assert opening(_calls(("quota", 40, 30)), PROFILE, lambda at: at + timedelta(seconds=20), NOW) is None


def test_a_success_that_started_after_a_refusal_cancels_it() -> None:
    assert _opening(("ok", 9, 1), ("rate_limited", 12, 10)) is None
    assert _opening(("ok", 11, 1), ("rate_limited", 12, 10)) == Opening(110, "rate limit"), "it was under way"


def test_a_refusal_beside_a_call_that_worked_opens_nothing() -> None:
    refused, earlier = _opening(("unavailable", 3, 2)), _opening(("unavailable", 3, 2), ("ok", 9, 5))
    assert refused is not None
    assert earlier == refused
    assert _opening(("unavailable", 3, 1), ("ok", 9, 2)) is None


def test_only_a_call_that_started_after_the_cool_down_proves_a_recovery() -> None:
    until = NOW - timedelta(seconds=10)
    assert has_recovered(_calls(("ok", 9, 1), ("transient", 20, 15)), until)
    assert has_recovered(_calls(("permanent", 9, 1)), until), "the question was at fault"
    assert not has_recovered(_calls(("ok", 11, 1)), until)
    assert not has_recovered(_calls(("transient", 5, 1), ("ok", 9, 2)), until)
    assert not has_recovered([], until)

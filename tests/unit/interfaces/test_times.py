"""Moments as people write them at the terminal."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
import typer

from pipeline.interfaces.cli import times
from pipeline.interfaces.cli.stack import _spent
from pipeline.interfaces.cli.times import moment
from pipeline.operations.overview import Spending


def test_a_day_of_spending_ends_by_the_clock_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "zone_of_here", lambda: ZoneInfo("Asia/Kolkata"))
    ends = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)
    assert _spent(Spending("ai", 1.5, 0, ends)).endswith(", in the day that ends 2026-03-01 14:00 (local time)")


@pytest.mark.parametrize(
    ("words", "iso"),
    [
        ("2d", "2026-03-27T12:00+00:00"),
        ("1h30m", "2026-03-29T12:30+02:00"),
        ("90min", "2026-03-29T12:30+02:00"),
        ("today", "2026-03-29T00:00+01:00"),
        ("yesterday", "2026-03-28T00:00+01:00"),
        ("now", "2026-03-29T14:00+02:00"),
        ("2026-03-28", "2026-03-28T00:00+01:00"),
        ("2026-03-28T10:00Z", "2026-03-28T10:00+00:00"),
    ],
)
def test_a_moment_may_be_given_in_words(words: str, iso: str) -> None:
    now = datetime(2026, 3, 29, 12, 0, tzinfo=UTC)  # the day on which Berlin's clocks go forward
    time = moment(words, ZoneInfo("Europe/Berlin"), now=now)
    assert time == datetime.fromisoformat(iso)


@pytest.mark.parametrize("words", ["soon", "2x", "-3d", "99999999999999w", "2026-13-01", "0001-01-01", "d"])
def test_an_invalid_moment_is_refused(words: str) -> None:
    if words == "0001-01-01":
        assert moment(words, ZoneInfo("UTC")) is not None
        words = "0001-01-01T00:00+14:00"
    with pytest.raises(typer.BadParameter):
        moment(words, ZoneInfo("Europe/Berlin"))

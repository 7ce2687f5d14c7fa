"""The start of a quota's day, and limits as people write them."""

from datetime import UTC, datetime, time

import pytest

from pipeline.engine.gate import Unit, Window
from pipeline.engine.limits import format_windows, parse_windows
from pipeline.settings.quota import next_reset, zone


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-01-20T08:29:59+00:00", "2026-01-20T08:30:00+00:00"),
        ("2026-01-20T08:30:00+00:00", "2026-01-21T08:30:00+00:00"),
        ("2026-01-20T23:00:00+00:00", "2026-01-21T08:30:00+00:00"),
    ],
)
def test_half_past_four_in_the_afternoon_at_utc_8(now: str, expected: str) -> None:
    reset = next_reset(datetime.fromisoformat(now), time(16, 30), zone("UTC+8"))
    assert reset == datetime.fromisoformat(expected)


def test_a_reset_follows_daylight_saving() -> None:
    pacific = zone("America/Los_Angeles")
    winter = next_reset(datetime(2026, 3, 7, 12, tzinfo=UTC), time(0, 0), pacific)
    summer = next_reset(datetime(2026, 3, 9, 12, tzinfo=UTC), time(0, 0), pacific)
    assert (winter.hour, summer.hour) == (8, 7)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "UTC+x"])
def test_unknown_zones_are_refused(name: str) -> None:
    with pytest.raises(ValueError):
        zone(name)


def test_limits_are_read_as_people_write_them() -> None:
    assert parse_windows("10/s, 100000 tokens/min") == [Window(10, 1), Window(100000, 60, Unit.TOKENS)]
    assert parse_windows("") == []
    assert format_windows(parse_windows("60 requests/60s, 5/2 min, 9 token/day")) == "60/min, 5/2min, 9 tokens/day"


@pytest.mark.parametrize("text", ["0/s", "-1/s", "10", "ten/s", "1/fortnight", "99999999999/s", "1/s,2/s,3/s,4/s,5/s"])
def test_limits_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_windows(text)


@pytest.mark.parametrize("name", ["UTC+99999999999", "UTC+25", "Europe", "a." * 2_000, "../../etc/passwd", "UTC+x", ""])
def test_an_invalid_time_zone_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"time zone|timedelta"):
        zone(name)

"""Pace and remaining time, from the times of completed units."""

import pytest

from pipeline.interfaces.cli.pace import FEW, WINDOW_S, Pace


def after(*seen: tuple[float, int]) -> Pace:
    pace = Pace()
    for now_s, done in seen:
        pace.see(done, now_s)
    return pace


@pytest.mark.parametrize(
    ("seen", "total", "now_s", "words"),
    [
        ([(0, 0), (10, 24)], 300, 10, "2.4/s, 2 min left"),
        ([(0, 100), (10, 124)], 300, 10, "2.4/s, 73 s left"),  # units completed before the start do not count
        ([(0, 0), (10, 400)], 100_000, 10, "40/s, 42 min left"),
        ([(0, 0), (60, 2)], 1000, 60, "2.0/min, 8 h left"),
        ([(0, 0), (10, 24)], 300, 20, "1.2/s, 4 min left"),  # no progress since
        ([(0, 0), (1, 24)], 300, 1, ""),  # too soon
        ([(0, 7)], 300, 100, ""),
        ([(0, 0), (10, 24)], None, 10, ""),
        ([(0, 0), (10, 24)], 24, 10, ""),
        ([(0, 0), (10, 24), (11, 0)], 24, 20, ""),  # a new start
    ],
)
def test_pace_and_time_left(seen: list[tuple[float, int]], total: int | None, now_s: float, words: str) -> None:
    assert after(*seen).words(total, now_s) == words


def test_only_the_last_while_counts_unless_little_happened_then() -> None:
    slow = [(float(minute * 600), minute) for minute in range(FEW)]
    assert after(*slow).per_s(slow[-1][0]) == pytest.approx(1 / 600)
    quick = [(slow[-1][0] + number, FEW + number) for number in range(1, int(WINDOW_S) * 2)]
    assert after(*slow, *quick).per_s(quick[-1][0]) == pytest.approx(1, rel=0.1)

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.flows.screenshots.rules.batches import (
    HistorySegment,
    HistoryThread,
    Shot,
    history_pack,
    idempotency_key,
    is_source_key,
    portions,
    ready,
)
from pipeline.flows.screenshots.rules.turn_order import pick, scanned, track_of
from pipeline.flows.screenshots.states import Track
from pipeline.settings import ScreenshotSettings

NOW = datetime(2026, 1, 12, 16, tzinfo=UTC)
SETTINGS = ScreenshotSettings()
AGE_S = SETTINGS.recovery_age_s
WEIGHTS = {Track.REALTIME: SETTINGS.realtime_weight, Track.RECOVERY: SETTINGS.recovery_weight}


def shot(number: int, age_s: float = 0, ts_ms: int | None = None) -> Shot:
    return Shot(number, number * 1000 if ts_ms is None else ts_ms, NOW - timedelta(seconds=age_s), "ab")


def ids(batches: list[list[Shot]]) -> list[list[int]]:
    return [[frame.id for frame in batch] for batch in batches]


def test_ready_at_five_or_thirty_seconds_after_the_first() -> None:
    assert ids(ready([shot(n) for n in range(7)], 5, 30, NOW)) == [[0, 1, 2, 3, 4]]
    assert ids(ready([shot(1, 29.9), shot(2)], 5, 30, NOW)) == []
    assert ids(ready([shot(1, 30), shot(2)], 5, 30, NOW)) == [[1, 2]]
    assert ready([], 5, 30, NOW) == []


def test_a_clock_that_goes_back_delays_no_batch_and_frames_sort_by_their_own_time() -> None:
    assert ids(ready([shot(1, -3600), shot(2)], 5, 30, NOW)) == [[1, 2]]
    assert ids(ready([shot(1, -2), shot(2)], 5, 30, NOW)) == []  # two machines' clocks
    backwards = [shot(1, 40, ts_ms=9000), shot(2, ts_ms=1000)]
    assert ids(ready(backwards, 5, 30, NOW)) == [[2, 1]]
    assert idempotency_key("screen:1", backwards).startswith("vlm_batch:screen:1:1000-9000:")


def test_the_key_is_the_same_in_any_order_and_another_for_other_frames() -> None:
    frames = [shot(1), shot(2), shot(3)]
    key = idempotency_key("screen:1", frames)
    assert key == idempotency_key("screen:1", frames[::-1])
    assert key != idempotency_key("screen:1", frames[:2])
    assert key != idempotency_key("screen:2", frames)
    with pytest.raises(ValueError, match="at least one"):
        idempotency_key("screen:1", [])


def test_twelve_screenshots_are_shards_of_five_five_and_two() -> None:
    assert [len(shard) for shard in portions(range(12), 5)] == [5, 5, 2]


@pytest.mark.parametrize(
    ("key", "good"),
    [
        ("screen:1", True),
        ("window:0x3a", True),
        ("screen:", False),
        ("disk:1", False),
        ("screen:a\nb", False),
        ("screen:../1", False),
        ("screen:a b", False),
        ("screen:a:b", False),
        ("screen:\ud800", False),
        ("screen:" + "1" * 113, True),
        ("screen:" + "1" * 114, False),
        ("window:屏幕", True),
    ],
)
def test_source_keys_name_screens_and_windows(key: str, good: bool) -> None:
    assert is_source_key(key) is good


def test_history_holds_three_threads_fifteen_minutes_and_ten_entities() -> None:
    now_ms = 10_000_000
    threads = [HistoryThread(thread_id=f"t{n}", last_active_ms=n) for n in range(5)]
    segments = [
        HistorySegment(thread_id=f"s{age}", title="x", event_time_ms=now_ms - age * 60_000) for age in (16, 1, 15)
    ]
    names = ["Ann", "ann", " ", *(f"e{n}" for n in range(20))]
    since_ms = now_ms - int(SETTINGS.history_minutes * 60_000)
    pack = history_pack(
        threads,
        segments,
        names,
        since_ms=since_ms,
        max_threads=SETTINGS.history_threads,
        max_entities=SETTINGS.history_entities,
    )
    assert [thread.thread_id for thread in pack.threads] == ["t4", "t3", "t2"]
    assert [thread.thread_id for thread in pack.segments] == ["s1", "s15"]
    assert pack.entities == ["Ann", *(f"e{n}" for n in range(9))]
    assert pack.thread_ids == ["t4", "t3", "t2", "s1", "s15"]


@dataclass(frozen=True)
class Row:
    id: int
    attempts: int
    created_at: datetime


def rows(realtime: int, recovery: int) -> list[Row]:
    return [Row(n, 0, NOW) for n in range(realtime)] + [Row(1000 + n, 1, NOW) for n in range(recovery)]


@pytest.mark.parametrize(
    ("attempts", "age_s", "track"),
    [
        (0, 0, Track.REALTIME),
        (0, 299, Track.REALTIME),
        (0, 300, Track.RECOVERY),
        (1, 0, Track.RECOVERY),
        (0, -7200, Track.REALTIME),
    ],
)
def test_the_track_follows_age_and_attempts(attempts: int, age_s: float, track: Track) -> None:
    assert track_of(attempts, NOW - timedelta(seconds=age_s), NOW, 300) is track


def test_three_of_four_turns_are_realtimes_also_over_many_calls() -> None:
    turn, waiting, order = 0, rows(30, 30), []
    for _ in range(20):
        (row,), turn = pick(waiting, 1, NOW, AGE_S, WEIGHTS, turn)
        waiting.remove(row)
        order.append(row.attempts)
    assert order == [0, 0, 0, 1] * 5


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60), st.integers(0, 1000))
def test_tracks_are_work_conserving_and_keep_three_to_one(new: int, old: int, count: int, turn: int) -> None:
    waiting = rows(new, old)
    picked, after = pick(waiting, count, NOW, AGE_S, WEIGHTS, turn)
    assert len(picked) == min(count, new + old)
    assert len({row.id for row in picked}) == len(picked)
    contested = after - turn
    recovered = sum(row.attempts for row in picked[:contested])
    assert contested // 4 <= recovered <= -(-contested // 4)
    for track in (0, 1):
        chosen = [row.id for row in picked if row.attempts == track]
        assert chosen == sorted(chosen)


@given(st.integers(0, 50), st.integers(1, 20))
def test_scan_is_half_newest_and_half_oldest_without_repetition(total: int, limit: int) -> None:
    waiting = rows(total, 0)
    scanned_ids = [row.id for row in scanned(waiting[::-1][:limit], waiting[:limit], limit)]
    assert len(scanned_ids) == len(set(scanned_ids)) == min(total, limit)
    if total >= limit > 1:
        assert {0, total - 1} <= set(scanned_ids)
        assert (
            sum(frame_id < total / 2 for frame_id in scanned_ids) in {limit // 2, -(-limit // 2)} or total < 2 * limit
        )

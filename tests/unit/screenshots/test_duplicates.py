"""The judgement of duplicates, and its threshold while analysis lags."""

from datetime import UTC, datetime, timedelta

from pipeline.flows.screenshots.frames.buffer import pressure
from pipeline.flows.screenshots.rules.duplicates import Seen, judge, recent
from pipeline.flows.screenshots.states import Verdict
from pipeline.settings import ScreenshotSettings

NOW = datetime(2026, 1, 12, 16, tzinfo=UTC)
SETTINGS = ScreenshotSettings()


def hash_of(bits: int) -> str:
    return f"{(1 << bits) - 1:064x}"


def seen(number: int, bits: int, age_s: float = 0) -> Seen:
    return Seen(number, hash_of(bits), NOW - timedelta(seconds=age_s))


def test_a_rejection_names_its_distance_threshold_and_nearest_frame() -> None:
    judgement = judge(hash_of(0), [seen(1, 40), seen(2, 6), seen(3, 6)], 6)
    assert (judgement.verdict, judgement.distance, judgement.nearest, judgement.threshold) == (
        Verdict.DUPLICATE,
        6,
        2,
        6,
    )
    assert judge(hash_of(0), [seen(1, 7)], 6).verdict is Verdict.ACCEPTED
    assert judge(hash_of(0), [], 6).nearest is None


def test_a_comparison_of_sketches_may_accept_a_frame_with_a_similar_hash() -> None:
    frames = [seen(1, 4), seen(2, 2), seen(3, 40)]
    judgement = judge(hash_of(0), frames, 6, lambda frame: frame.id == 1)
    assert (judgement.verdict, judgement.distance, judgement.nearest) == (Verdict.DUPLICATE, 4, 1)
    judgement = judge(hash_of(0), frames, 6, lambda _: False)
    assert (judgement.verdict, judgement.distance, judgement.nearest, judgement.threshold) == (
        Verdict.ACCEPTED,
        2,
        2,
        6,
    )


def test_frames_are_compared_with_the_latest_arrivals_and_frames_from_the_future() -> None:
    frames = [seen(number, 0, age_s=number) for number in range(20)] + [seen(98, 0, 601), seen(99, 0, -3600)]
    compared = [frame.id for frame in recent(frames, NOW, SETTINGS.dedup_window_s, SETTINGS.dedup_frames)]
    assert compared == [99, *range(19, 20 - SETTINGS.dedup_frames, -1)]


def test_pressure_first_widens_the_threshold_then_enlarges_batches() -> None:
    at = SETTINGS.pressure_batches
    levels = [pressure(waiting, 0, SETTINGS) for waiting in (0, at - 1, at, 2 * at)]
    assert [state.level for state in levels] == [0, 0, 1, 2]
    assert [state.threshold for state in levels] == [10, 10, 16, 16]
    assert [(state.batch_size, state.batch_timeout_s) for state in levels] == [(5, 30), (5, 30), (5, 30), (10, 60)]


def test_pressure_ends_at_half_of_its_start() -> None:
    at = SETTINGS.pressure_batches
    assert pressure(at - 1, 1, SETTINGS).level == 1
    assert pressure(at // 2, 1, SETTINGS).level == 0
    assert pressure(at + 1, 2, SETTINGS).level == 2
    assert pressure(at, 2, SETTINGS).level == 1
    assert pressure(0, 2, SETTINGS).level == 0

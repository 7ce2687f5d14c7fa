import random
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.retry import GiveUp, RetryAt, decide
from pipeline.engine.states import IllegalTransition
from pipeline.flows.screenshots.states import BATCH, WorkEvent, WorkStatus
from pipeline.flows.screenshots.work.retry import policy
from pipeline.settings import ScreenshotSettings, Settings

NOW = datetime(2026, 1, 12, tzinfo=UTC)
S, E = WorkStatus, WorkEvent


def test_defaults_equal_the_designs_table() -> None:
    defaults = ScreenshotSettings()
    assert (defaults.batch_size, defaults.batch_timeout_s, defaults.shard_size) == (5, 30, 5)
    assert (defaults.vision_concurrency, defaults.text_concurrency) == (4, 4)
    assert defaults.backoff_s == [5, 15, 60, 300, 600]
    assert (defaults.jitter_s, defaults.stale_running_s, defaults.recovery_age_s) == (10, 300, 300)
    assert (defaults.history_threads, defaults.history_minutes, defaults.history_entities) == (3, 15, 10)


@pytest.mark.parametrize(
    ("vision", "text", "batch", "merge", "scan"), [(4, 4, 2, 1, 20), (1, 1, 1, 1, 20), (100, 100, 4, 10, 56)]
)
def test_workers_and_scan_follow_the_formulas_and_merges_have_at_least_one(
    vision: int, text: int, batch: int, merge: int, scan: int
) -> None:
    settings = ScreenshotSettings(vision_concurrency=vision, text_concurrency=text)
    assert (settings.batch_workers, settings.merge_workers, settings.scan_limit) == (batch, merge, scan)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dedup_threshold": 20},
        {"backoff_s": [-1]},
        {"batch_size": 0},
        {"retention_days": float("inf")},
        {"retention_days": 1e7},
        {"history_minutes": 1e12},
        {"ledger_days": 1e7},
    ],
)
def test_settings_outside_the_calendar_or_the_rules_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ScreenshotSettings.model_validate(wrong)


def test_six_attempts_use_all_five_waits_each_with_up_to_ten_seconds_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = policy(Settings())
    error = UnitError("down", kind=ErrorKind.TRANSIENT)
    for part in (0.0, 0.999):
        monkeypatch.setattr(random, "random", lambda part=part: part)
        decisions = [decide(error, attempt, NOW, rules) for attempt in range(1, 7)]
        waits = [(decision.at - NOW).total_seconds() for decision in decisions if isinstance(decision, RetryAt)]
        assert waits == pytest.approx([wait + 10 * part for wait in (5, 15, 60, 300, 600)])
        assert decisions[5] == GiveUp()


def test_a_batch_has_the_states_of_the_design() -> None:
    assert BATCH.target(S.PENDING, E.CLAIM) is S.RUNNING
    assert BATCH.target(S.FAILED, E.CLAIM) is S.RUNNING
    assert BATCH.target(S.RUNNING, E.DONE) is S.SUCCEEDED
    assert BATCH.target(S.RUNNING, E.WAIT) is S.FAILED
    assert BATCH.target(S.RUNNING, E.FAIL) is S.FAILED_PERMANENT
    assert BATCH.target(S.FAILED_PERMANENT, E.RETRY) is S.PENDING
    for state in (S.SUCCEEDED, S.FAILED_PERMANENT):
        with pytest.raises(IllegalTransition):
            BATCH.target(state, E.CLAIM)

"""A vision or text model that fails, answers nonsense, costs too much, or is not there."""

import json

import pytest

from pipeline.flows.screenshots import queries, service
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.providers import gates, queue_control
from tests.faults.flow import SQLITE, settings
from tests.faults.screenshots.flow import START_S, Shots
from tests.support import screenshot_model as replies
from tests.support.provider_server import Fault, ProviderServer
from tests.support.screenshot_model import ScreenshotModel, always_on, faults_on, questions, shown
from tests.support.stack import Stack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, SQLITE]
BUSY = Fault(status=503)


def notes_of(shots: Shots) -> str:
    return "\n".join(note for row in shots.rows(BATCHES) for note in json.loads(row.notes))


def test_shard_that_fails_five_times_succeeds_and_its_sibling_is_asked_once(stack: Stack, shots: Shots) -> None:
    stack.start("shots-1", "beat-1")
    ids = shots.add()
    shots.provider.script.rule = faults_on(Operation.ANALYSE, *[BUSY] * 5, shots=ids[:1])
    shots.launch()
    shots.finish()
    shots.assert_once(ids)
    assert shown(shots.provider, Operation.ANALYSE, None) == {tuple(ids[:5]): 6, tuple(ids[5:]): 1}


# No other call succeeds: after some openings of the breaker, the worker asks the provider a free question.
@pytest.mark.rotating
@settings(
    PROVIDERS__EYE__BREAKER_FAIL_MAX="1",
    PROVIDERS__EYE__BREAKER_COOL_DOWN_S="0.1",
    PROVIDERS__EYE__BREAKER_LONGEST_S="0.1",
)
def test_six_failures_are_a_dead_letter_and_a_replay_asks_only_for_the_failed_shard(stack: Stack, shots: Shots) -> None:
    stack.start("shots-1", "beat-1")
    ids = shots.add()
    shots.provider.script.rule = faults_on(Operation.ANALYSE, *[Fault(status=500)] * 1000, shots=ids[5:6])
    shots.launch()
    wait_until(lambda: shots.states(BATCHES) == {"failed_permanent": 1}, START_S, "a dead letter", last=shots.stand)
    (letter,) = queries.dead_letters(shots.context)
    assert "500" in letter.reason
    assert "after 6 attempts" in letter.reason
    assert shots.states(SHOTS) == {"failed_permanent": 10}
    asked = shown(shots.provider, Operation.ANALYSE, None)
    assert asked[tuple(ids[:5])] == 1
    assert asked[tuple(ids[5:])] > 6, "as long as it may be an outage, no attempt is used"
    shots.provider.script.rule = None
    assert service.replay(shots.context, "batch") == [letter.id]
    shots.launch()
    shots.finish()
    shots.assert_once(ids)
    assert shown(shots.provider, Operation.ANALYSE, None) == {**asked, tuple(ids[5:]): asked[tuple(ids[5:])] + 1}


def test_text_model_that_fails_is_done_without_and_the_batch_says_so(stack: Stack, shots: Shots) -> None:
    stack.start("shots-1", "beat-1")
    shots.provider.script.rule = always_on(Operation.EXPAND, BUSY)
    ids = shots.submit()
    shots.finish()
    shots.assert_once(ids)
    assert {row.made_by for row in shots.rows(NODES)} == {"direct"}
    assert {row.made_by for row in shots.rows(BATCHES)} == {"direct"}
    assert "text model failed" in notes_of(shots)
    assert set(shown(shots.provider, Operation.ANALYSE).values()) == {1}


@pytest.mark.rotating
@settings(PROVIDERS__PEN__BREAKER_FAIL_MAX="1", PROVIDERS__PEN__BREAKER_COOL_DOWN_S="600")
def test_text_model_whose_breaker_is_open_holds_nothing_up(stack: Stack, shots: Shots) -> None:
    stack.start("shots-1", "beat-1")
    shots.provider.script.rule = always_on(Operation.EXPAND, BUSY)
    ids = shots.submit(20)
    shots.finish()
    shots.assert_once(ids)
    assert {row.made_by for row in shots.rows(BATCHES)} == {"direct"}
    # Both expansions may have been under way when the breaker opened.
    assert shots.calls(Operation.EXPAND) <= 2


@pytest.mark.rotating
def test_merge_that_the_model_refuses_is_done_by_rules(stack: Stack, shots: Shots) -> None:
    stack.start("shots-1", "beat-1")
    shots.provider.script.rule = always_on(Operation.MERGE, Fault("refusal"))
    ids = shots.submit()
    shots.finish()
    shots.assert_once(ids)
    assert sum(row.merged_into_id is not None for row in shots.rows(NODES)) == 2


def test_reply_that_is_no_json_is_mended_once(stack: Stack, shots: Shots, model: ScreenshotModel) -> None:
    model.play(Operation.ANALYSE, replies.no_json)
    stack.start("shots-1", "beat-1")
    ids = shots.submit()
    shots.finish()
    shots.assert_once(ids)
    asked = questions(shots.provider, Operation.ANALYSE)
    assert [one.repair for one in asked].count(True) == 1
    assert (len(asked), {row.attempts for row in shots.rows(SHARDS)}) == (3, {1})
    assert {one.pictures for one in asked} == {5}


@pytest.mark.rotating
def test_reply_that_stays_broken_gives_its_valid_parts(stack: Stack, shots: Shots, model: ScreenshotModel) -> None:
    ids = shots.add(titles=["Mail", "Mail", "Editor", "Editor", "Editor"])
    model.play(Operation.ANALYSE, replies.cut_off, replies.cut_off)
    stack.start("shots-1", "beat-1")
    shots.launch()
    shots.finish()
    assert {row.title for row in shots.rows(NODES)} == {"Mail"}
    assert "only the valid parts" in notes_of(shots)
    assert shown(shots.provider, Operation.ANALYSE) == {tuple(ids): 2}


@pytest.mark.rotating
def test_reply_of_no_use_after_its_repair_is_a_dead_letter(stack: Stack, shots: Shots, model: ScreenshotModel) -> None:
    model.whenever(lambda asked: replies.no_json if asked.operation is Operation.ANALYSE else None)
    stack.start("shots-1", "beat-1")
    shots.submit(5)
    wait_until(lambda: shots.states(BATCHES) == {"failed_permanent": 1}, START_S, "a dead letter", last=shots.stand)
    assert shots.calls(Operation.ANALYSE) == 2
    assert "unusable, even after a repair" in queries.dead_letters(shots.context)[0].reason


@pytest.mark.rotating
def test_unsent_screenshots_are_left_out(stack: Stack, shots: Shots, model: ScreenshotModel) -> None:
    model.play(Operation.ANALYSE, replies.strangers)
    model.play(Operation.EXPAND, replies.strangers)
    stack.start("shots-1", "beat-1")
    ids = shots.submit(5)
    shots.finish()
    shots.assert_once(ids)
    assert shots.calls(Operation.ANALYSE) == 1, "what names ours as well needs no repair"
    assert "not sent" in notes_of(shots)


@pytest.mark.rotating
def test_threads_that_nobody_named_become_new_ones(stack: Stack, shots: Shots, model: ScreenshotModel) -> None:
    model.play(Operation.ANALYSE, replies.unknown_threads)
    model.play(Operation.EXPAND, replies.unknown_threads)
    stack.start("shots-1", "beat-1")
    ids = shots.submit(5)
    shots.finish()
    shots.assert_once(ids)
    assert "thread_of_somebody_else" not in {row.thread_id for row in shots.rows(NODES)}
    assert "starts a new thread" in notes_of(shots)


@pytest.mark.rotating
def test_screens_on_which_nothing_is_found_are_done_without_nodes(
    stack: Stack, shots: Shots, model: ScreenshotModel
) -> None:
    model.play(Operation.ANALYSE, replies.empty)
    stack.start("shots-1", "beat-1")
    shots.submit(5)
    shots.finish_batches()
    assert (shots.rows(NODES), shots.states(SHOTS), shots.calls(Operation.EXPAND)) == ([], {"succeeded": 5}, 0)


# One call costs more than the cap.
@pytest.mark.rotating
@settings(PROVIDERS__EYE__PRICES='{"*": {"input": 1000000, "output": 0}}', PROVIDERS__EYE__DAILY_SPEND_CAP="10")
def test_spend_cap_holds_the_frames_and_a_higher_one_lets_them_through(
    stack: Stack, shots: Shots, provider: ProviderServer
) -> None:
    queue_control.change_setting(shots.context, "queue.screenshot-vision.concurrency", "1")
    stack.start("shots-1", "beat-1")
    ids = shots.submit(20)
    closed = "eye has reached its spend cap for today"
    wait_until(
        lambda: closed in gates.closed_because(shots.context, "screenshot-vision"),
        START_S,
        "the cap has closed",
        last=shots.stand,
    )
    wait_until(lambda: not provider.stats(records=False)["under_way"], START_S, "no call is under way")
    assert shots.calls(Operation.ANALYSE) == 1
    assert not {"failed", "failed_permanent"} & (shots.states(BATCHES).keys() | shots.states(SHARDS).keys())
    queue_control.change_setting(shots.context, "provider.eye.daily_spend_cap", "0")
    shots.finish()
    shots.assert_once(ids)
    shots.assert_paid_once()
    assert {row.attempts for row in shots.rows(SHARDS)} == {1}

"""A vision or text model that fails, answers nonsense, costs too much, or is absent."""

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
    ids = shots.add()
    shots.provider.script.rule = faults_on(Operation.ANALYSE, *[BUSY] * 5, shots=ids[:1])
    stack.start("shots-1", "beat-1")  # with all frames there, beat cannot divide them
    shots.launch()
    shots.finish()
    shots.assert_once(ids)
    assert shown(shots.provider, Operation.ANALYSE, None) == {tuple(ids[:5]): 6, tuple(ids[5:]): 1}


# No other call succeeds. After some openings of the breaker, the worker sends the provider a free request.
@pytest.mark.rotating
@settings(
    PROVIDERS__EYE__BREAKER_FAIL_MAX="1",
    PROVIDERS__EYE__BREAKER_COOL_DOWN_S="0.1",
    PROVIDERS__EYE__BREAKER_LONGEST_S="0.1",
)
def test_six_failures_are_a_dead_letter_and_a_replay_asks_only_for_the_failed_shard(stack: Stack, shots: Shots) -> None:
    ids = shots.add()
    shots.provider.script.rule = faults_on(Operation.ANALYSE, *[Fault(status=500)] * 1000, shots=ids[5:6])
    stack.start("shots-1", "beat-1")
    shots.launch()
    wait_until(lambda: shots.states(BATCHES) == {"failed_permanent": 1}, START_S, "a dead letter", last=shots.describe)
    (letter,) = queries.dead_letters(shots.context)
    assert "500" in letter.reason
    assert "after 6 attempts" in letter.reason
    assert shots.states(SHOTS) == {"failed_permanent": 10}
    shown_before = shown(shots.provider, Operation.ANALYSE, None)
    assert shown_before[tuple(ids[:5])] == 1
    assert shown_before[tuple(ids[5:])] > 6, "a possible outage uses no attempt"
    shots.provider.script.rule = None
    assert service.replay(shots.context, "batch") == [letter.id]
    shots.launch()
    shots.finish()
    shots.assert_once(ids)
    assert shown(shots.provider, Operation.ANALYSE, None) == {
        **shown_before,
        tuple(ids[5:]): shown_before[tuple(ids[5:])] + 1,
    }


def test_a_batch_continues_without_a_failing_text_model_and_notes_it(stack: Stack, shots: Shots) -> None:
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
def test_an_open_breaker_of_the_text_model_delays_no_batch(stack: Stack, shots: Shots) -> None:
    stack.start("shots-1", "beat-1")
    shots.provider.script.rule = always_on(Operation.EXPAND, BUSY)
    ids = shots.submit(20)
    shots.finish()
    shots.assert_once(ids)
    assert {row.made_by for row in shots.rows(BATCHES)} == {"direct"}
    # Both expansions may be under way when the breaker opens.
    assert shots.calls(Operation.EXPAND) <= 2


@pytest.mark.rotating
def test_merge_that_the_model_refuses_is_done_by_rules(stack: Stack, shots: Shots) -> None:
    stack.start("shots-1", "beat-1")
    shots.provider.script.rule = always_on(Operation.MERGE, Fault("refusal"))
    ids = shots.submit()
    shots.finish()
    shots.assert_once(ids)
    assert sum(row.merged_into_id is not None for row in shots.rows(NODES)) == 2


def test_a_reply_that_is_not_json_is_repaired_once(stack: Stack, shots: Shots, model: ScreenshotModel) -> None:
    model.play(Operation.ANALYSE, replies.no_json)
    stack.start("shots-1", "beat-1")
    ids = shots.submit()
    shots.finish()
    shots.assert_once(ids)
    requests = questions(shots.provider, Operation.ANALYSE)
    assert [request.repair for request in requests].count(True) == 1
    assert (len(requests), {row.attempts for row in shots.rows(SHARDS)}) == (3, {1})
    assert {request.pictures for request in requests} == {5}


@pytest.mark.rotating
def test_the_valid_parts_of_a_broken_reply_are_used(stack: Stack, shots: Shots, model: ScreenshotModel) -> None:
    ids = shots.add(titles=["Mail", "Mail", "Editor", "Editor", "Editor"])
    model.play(Operation.ANALYSE, replies.cut_off, replies.cut_off)
    stack.start("shots-1", "beat-1")
    shots.launch()
    shots.finish()
    assert {row.title for row in shots.rows(NODES)} == {"Mail"}
    assert "only the valid parts" in notes_of(shots)
    assert shown(shots.provider, Operation.ANALYSE) == {tuple(ids): 2}


@pytest.mark.rotating
def test_an_unusable_reply_after_its_repair_is_a_dead_letter(
    stack: Stack, shots: Shots, model: ScreenshotModel
) -> None:
    model.whenever(lambda request: replies.no_json if request.operation is Operation.ANALYSE else None)
    stack.start("shots-1", "beat-1")
    shots.submit(5)
    wait_until(lambda: shots.states(BATCHES) == {"failed_permanent": 1}, START_S, "a dead letter", last=shots.describe)
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
    assert shots.calls(Operation.ANALYSE) == 1, "a reply that also names sent screenshots needs no repair"
    assert "not sent" in notes_of(shots)


@pytest.mark.rotating
def test_unknown_threads_become_new_threads(stack: Stack, shots: Shots, model: ScreenshotModel) -> None:
    model.play(Operation.ANALYSE, replies.unknown_threads)
    model.play(Operation.EXPAND, replies.unknown_threads)
    stack.start("shots-1", "beat-1")
    ids = shots.submit(5)
    shots.finish()
    shots.assert_once(ids)
    assert "thread_of_somebody_else" not in {row.thread_id for row in shots.rows(NODES)}
    assert "starts a new thread" in notes_of(shots)


@pytest.mark.rotating
def test_screens_without_segments_are_done_without_nodes(stack: Stack, shots: Shots, model: ScreenshotModel) -> None:
    model.play(Operation.ANALYSE, replies.empty)
    stack.start("shots-1", "beat-1")
    shots.submit(5)
    shots.finish_batches()
    assert (shots.rows(NODES), shots.states(SHOTS), shots.calls(Operation.EXPAND)) == ([], {"succeeded": 5}, 0)


# One call exceeds the cap.
@pytest.mark.rotating
@settings(PROVIDERS__EYE__PRICES='{"*": {"input": 1000000, "output": 0}}', PROVIDERS__EYE__DAILY_SPEND_CAP="10")
def test_frames_wait_at_the_spend_cap_and_continue_when_it_is_raised(
    stack: Stack, shots: Shots, provider: ProviderServer
) -> None:
    queue_control.change_setting(shots.context, "queue.screenshot-vision.concurrency", "1")
    stack.start("shots-1", "beat-1")
    ids = shots.submit(20)
    closed = "eye has reached its spend cap for today"
    wait_until(
        lambda: closed in gates.closed_because(shots.context, "screenshot-vision"),
        START_S,
        "the cap has closed the gate",
        last=shots.describe,
    )
    wait_until(lambda: not provider.stats(records=False)["under_way"], START_S, "no call is under way")
    assert shots.calls(Operation.ANALYSE) == 1
    assert not {"failed", "failed_permanent"} & (shots.states(BATCHES).keys() | shots.states(SHARDS).keys())
    queue_control.change_setting(shots.context, "provider.eye.daily_spend_cap", "0")
    shots.finish()
    shots.assert_once(ids)
    shots.assert_paid_once()
    assert {row.attempts for row in shots.rows(SHARDS)} == {1}

"""A worker is killed at any step of the canvas: another worker finishes, and no stored result is paid for twice."""

import signal
from pathlib import Path

import pytest

from pipeline.flows.screenshots.flow import FLOW
from pipeline.flows.screenshots.graph.models import NODES
from tests.faults.flow import POSTGRESQL, SQLITE
from tests.faults.screenshots.doomed import NAME, work_off
from tests.faults.screenshots.flow import START_S, Shots
from tests.support.screenshot_model import ScreenshotModel
from tests.support.stack import Stack, python
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

MERGES = 2
"""Merges of a batch: two segments become two events each."""
# The function at which the worker dies, and the most calls under way or without a stored answer.
STEPS = {
    "with_frames_just_batched": ("frames.buffer:batch:after", 0),
    "before_a_batch_is_begun": ("work.analysis:claim:before", 0),
    "when_a_batch_is_begun": ("work.analysis:claim:after", 0),
    "with_a_shard_claimed": ("work.shard:claim:after", 0),
    "while_the_model_looks": ("rules.prompts:vision_prompt:during", 2),
    "with_an_answer_that_is_not_stored": ("work.shard:settle:before", 0),
    "with_a_result_just_stored": ("work.shard:settle:after", 1),
    "before_the_shards_are_settled": ("work.analysis:settle:before", 0),
    "when_the_shards_are_settled": ("work.analysis:settle:after", 0),
    "with_an_expansion_claimed": ("work.expansion:claim:after", 0),
    "while_the_model_writes": ("rules.prompts:expand_prompt:during", 1),
    "with_a_reply_that_is_not_stored": ("work.expansion:keep_reply:before", 0),
    "with_a_reply_just_stored": ("work.expansion:keep_reply:after", 0),
    "before_nodes_are_written": ("work.expansion:settle:before", 0),
    "with_nodes_just_written": ("work.expansion:settle:after", 0),
    "with_a_merge_claimed": ("work.merge:claim:after", 0),
    "while_the_model_merges": ("rules.prompts:merge_prompt:during", 2),
    "with_a_merge_that_is_not_committed": ("work.merge:settle:before", 0),
    "with_a_merge_just_committed": ("work.merge:settle:after", 1),
}


def deadly(*names: str) -> pytest.MarkDecorator:
    """Run the test once for each of these steps, with a worker that dies there."""
    cases = [
        pytest.param({"KILL_AT": f"pipeline.flows.screenshots.{STEPS[name][0]}"}, STEPS[name][1], id=name)
        for name in names
    ]
    return pytest.mark.parametrize(("extra_env", "in_vain"), cases, indirect=["extra_env"])


@SQLITE
@deadly(*STEPS)
def test_worker_killed_costs_the_calls_under_way_and_nothing_else(
    shots: Shots, in_vain: int, data_dir: Path, settings_env: dict[str, str]
) -> None:
    _die_and_finish_without_celery(shots, in_vain, data_dir, settings_env)


@pytest.mark.rotating
@POSTGRESQL
@deadly("with_an_answer_that_is_not_stored", "before_nodes_are_written", "with_a_merge_that_is_not_committed")
def test_the_same_on_postgresql(shots: Shots, in_vain: int, data_dir: Path, settings_env: dict[str, str]) -> None:
    _die_and_finish_without_celery(shots, in_vain, data_dir, settings_env)


def _die_and_finish_without_celery(shots: Shots, in_vain: int, folder: Path, settings_env: dict[str, str]) -> None:
    ids = shots.add()
    with python("tests.faults.screenshots.doomed", folder, shots.context, settings_env) as doomed:
        assert doomed.wait(START_S) == -signal.SIGKILL, shots.describe()
    FLOW.free_lost(shots.context, {NAME})
    shots.skip_waits()
    work_off(shots.context)
    shots.assert_finished()
    shots.assert_once(ids)
    shots.assert_paid_once(repeated=in_vain)
    assert shots.merged() == MERGES


def _die_and_finish(stack: Stack, shots: Shots, in_vain: int) -> None:
    stack.start("doomed-1", "beat-1")
    ids = shots.submit()
    wait_until(lambda: not stack["doomed-1"].alive, START_S, "the worker has died", last=shots.describe)
    stack.start("shots-1")
    shots.finish()
    shots.assert_once(ids)
    shots.assert_paid_once(repeated=in_vain)
    assert shots.merged() == MERGES


# One step of each kind: only the return of a dead worker's messages differs with a fleet.
@SQLITE
@deadly("before_a_batch_is_begun", "before_nodes_are_written")
def test_the_same_with_celery(stack: Stack, shots: Shots, in_vain: int) -> None:
    _die_and_finish(stack, shots, in_vain)


@pytest.mark.rotating
@POSTGRESQL
@deadly("with_an_answer_that_is_not_stored", "with_a_merge_that_is_not_committed")
def test_the_same_with_celery_on_postgresql(stack: Stack, shots: Shots, in_vain: int) -> None:
    _die_and_finish(stack, shots, in_vain)


def test_two_workers_merge_into_one_node_without_losing_anything(
    stack: Stack, shots: Shots, model: ScreenshotModel
) -> None:
    model.pieces = 5
    stack.start("shots-1", "shots-2", "beat-1")
    # Three batches at once, each with ten events of two threads.
    ids = [shot for source in (1, 2, 3) for shot in shots.submit(source=f"screen:{source}")]
    shots.finish()
    shots.assert_once(ids)
    shots.assert_paid_once()
    nodes = shots.rows(NODES)
    assert shots.merged() == len(nodes) - len({node.thread_id for node in nodes}) >= 20, shots.describe()

"""Frames under way during an outage of Redis or the database, or without their file."""

import pytest

from pipeline.flows.screenshots.frames import files
from pipeline.flows.screenshots.models import BATCHES, SHOTS
from pipeline.flows.screenshots.rules.provenance import Operation
from tests.faults.flow import POSTGRESQL, SQLITE, settings
from tests.faults.screenshots.flow import Shots
from tests.support.postgres import Postgres
from tests.support.provider_server import ProviderServer
from tests.support.redis_server import RedisServer
from tests.support.screenshot_model import shown
from tests.support.stack import Stack

# Between two sweeps live workers have time to reconnect, so that none is missed twice.
pytestmark = [pytest.mark.faults, settings(SWEEP_INTERVAL_S="2")]


@pytest.fixture
def midway(stack: Stack, shots: Shots, provider: ProviderServer) -> list[int]:
    """Add forty frames in four batches and wait for the first answers."""
    stack.start("shots-1", "shots-2", "beat-1")
    ids = shots.submit(40)
    shots.wait_for(Operation.ANALYSE, 5)
    return ids


def test_redis_emptied_in_the_middle(midway: list[int], shots: Shots, redis_server: RedisServer) -> None:
    redis_server.flush()
    shots.finish()
    shots.assert_once(midway)
    shots.assert_paid_once()


@pytest.mark.rotating
@SQLITE
def test_redis_emptied_repeatedly(midway: list[int], shots: Shots, redis_server: RedisServer) -> None:
    for operation in (Operation.ANALYSE, Operation.EXPAND, Operation.MERGE):
        shots.wait_for(operation)
        redis_server.flush()
    shots.finish()
    shots.assert_once(midway)
    shots.assert_paid_once()


@pytest.mark.rotating
@SQLITE
def test_redis_killed_and_restarted_without_its_data(
    midway: list[int], stack: Stack, shots: Shots, redis_server: RedisServer
) -> None:
    redis_server.kill()
    redis_server.lose_data()
    redis_server.start()
    shots.finish()
    shots.assert_once(midway)
    shots.assert_paid_once()
    assert all(running.alive for running in stack.running)


@POSTGRESQL
def test_database_restarted_costs_no_answer(
    midway: list[int], shots: Shots, postgres: Postgres, provider: ProviderServer
) -> None:
    postgres.restart("fast")
    shots.wait_for(Operation.EXPAND, 2)
    postgres.restart("immediate")
    shots.finish()
    shots.assert_once(midway)
    shots.assert_paid_once()


@pytest.mark.rotating
@SQLITE
def test_a_file_deleted_before_its_analysis_does_not_fail_the_others(stack: Stack, shots: Shots) -> None:
    ids = shots.add()
    deleted = {row.id: row.file for row in shots.rows(SHOTS)}[ids[3]]
    files.path_of(shots.context.settings, deleted).unlink()
    stack.start("shots-1", "beat-1")
    shots.launch()
    shots.finish()
    analysed = set(shown(shots.provider, Operation.ANALYSE))
    assert analysed == {tuple(shot for shot in ids[:5] if shot != ids[3]), tuple(ids[5:])}
    (batch,) = shots.rows(BATCHES)
    assert "deleted or damaged before" in batch.notes
    assert {row.id: row.storage_state for row in shots.rows(SHOTS)}[ids[3]] == "missing"


@pytest.mark.rotating
@SQLITE
def test_batch_without_any_file_ends_without_a_call(stack: Stack, shots: Shots) -> None:
    shots.add()
    for row in shots.rows(SHOTS):
        files.path_of(shots.context.settings, row.file).unlink()
    stack.start("shots-1", "beat-1")
    shots.launch()
    shots.finish_batches()
    assert shots.provider.records == []

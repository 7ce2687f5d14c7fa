"""A music run during an outage of Redis, the database or the provider."""

import pytest

from tasks import music
from tests.faults.flow import POSTGRESQL, SQLITE, settings
from tests.faults.music.flow import add_songs_here, answered_calls, change, count, describe, ended, limits
from tests.support.music import CHAT, EMBED
from tests.support.postgres import Postgres
from tests.support.provider_server import ProviderServer
from tests.support.redis_server import RedisServer
from tests.support.stack import Stack
from tests.support.waiting import wait_until

# Between two sweeps live workers have time to reconnect, so that none is missed twice.
pytestmark = [pytest.mark.faults, settings(SWEEP_INTERVAL_S="2")]


@pytest.fixture
def midway(stack: Stack, provider: ProviderServer) -> None:
    """Start a run of 80 songs with two batches at once, and wait until it is in its middle."""
    limits("1000/s")
    change(queue_concurrency="2")
    provider.script.latency_s = 0.3
    add_songs_here(80)
    stack.start("music-1", "music-2", "beat-1")
    music.start(skip_sync=True)
    assert provider.wait_for_calls(5, 90)


def assert_each_paid_once(provider: ProviderServer, songs: int = 80) -> None:
    assert music.status().songs == {"COMPLETED": songs}
    assert set(answered_calls(provider).values()) == {1}
    assert (count(provider, CHAT), count(provider, EMBED)) == (songs // 10, songs // 10)


def finish(provider: ProviderServer) -> None:
    wait_until(ended, 120, "the run has ended", last=describe)
    assert_each_paid_once(provider)


def test_redis_emptied_in_the_middle_of_a_run(
    midway: None, redis_server: RedisServer, provider: ProviderServer
) -> None:
    redis_server.flush()
    finish(provider)


@pytest.mark.rotating
@SQLITE
def test_redis_emptied_repeatedly(midway: None, redis_server: RedisServer, provider: ProviderServer) -> None:
    for calls in (6, 9, 12):
        assert provider.wait_for_calls(calls, 90)
        redis_server.flush()
    finish(provider)


@pytest.mark.rotating
@SQLITE
def test_redis_killed_and_restarted_without_its_data(
    midway: None, stack: Stack, redis_server: RedisServer, provider: ProviderServer
) -> None:
    redis_server.kill()
    redis_server.lose_data()
    # Calls under way are committed without Redis.
    wait_until(lambda: not held_batches(), 90, "calls under way are committed", last=held_batches)
    redis_server.start()
    finish(provider)
    assert all(running.alive for running in stack.running)


@POSTGRESQL
def test_run_on_postgresql_is_paid_once_and_outlives_restarts(
    midway: None, postgres: Postgres, provider: ProviderServer
) -> None:
    postgres.restart("fast")
    assert provider.wait_for_calls(10, 90)
    postgres.restart("immediate")
    finish(provider)


@pytest.mark.rotating
@POSTGRESQL
def test_worker_killed_on_postgresql_costs_its_calls_and_nothing_else(
    midway: None, stack: Stack, provider: ProviderServer
) -> None:
    stack["music-1"].kill_group()
    wait_until(ended, 120, "the run has ended", last=describe)
    assert music.status().songs == {"COMPLETED": 80}
    # Two lanes: the killed worker had at most two calls under way.
    assert len(provider.records) <= 16 + 2
    assert max(answered_calls(provider).values()) <= 2


def held_batches() -> list[str]:
    """Return the batches that a worker holds."""
    return [str(batch.id) for batch in music.batches(status=music.BatchStatus.PROCESSING)]

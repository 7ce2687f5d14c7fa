"""The music flow on real Celery workers: killed, paused, and within the limits of the provider's gate."""

import time

import pytest

from tasks import music
from tests.faults.flow import SQLITE
from tests.faults.music.flow import add_songs_here, count, describe, ended, limits
from tests.support.music import CHAT, EMBED
from tests.support.provider_server import Fault, ProviderServer
from tests.support.stack import Stack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, SQLITE]


def test_start_syncs_enqueues_and_describes_all_songs(stack: Stack, provider: ProviderServer) -> None:
    limits("1000/s")
    stack.start("music-1", "beat-1")
    music.start()
    with pytest.raises(music.AlreadyRunning):
        music.start()
    wait_until(ended, 90, "the run has ended", last=describe)
    overview = music.status()
    assert overview.songs == {"COMPLETED": 30}
    assert (count(provider, CHAT), count(provider, EMBED)) == (3, 3)
    assert overview.run is not None
    assert overview.run.sync_report is not None
    assert overview.run.sync_report["added"] == 30


def test_worker_killed_in_a_call_costs_that_call_and_nothing_else(stack: Stack, provider: ProviderServer) -> None:
    limits("1000/s")
    add_songs_here()
    provider.push(Fault("hang"))
    stack.start("calls-1", "control-1", "beat-1")
    music.start(skip_sync=True)
    assert provider.wait_for_calls(1, 90)
    stack["calls-1"].kill_group()
    stack.start("calls-2")
    wait_until(ended, 90, "the run has ended", last=describe)
    assert music.status().songs == {"COMPLETED": 30}
    assert (count(provider, CHAT), count(provider, EMBED)) == (4, 3)


@pytest.mark.rotating
def test_limit_holds_and_failed_embedding_is_retried_without_new_metadata(
    stack: Stack, provider: ProviderServer
) -> None:
    limits("2/3s")
    add_songs_here()
    failures = iter([True])
    provider.script.rule = lambda record: Fault(status=503) if record.path == EMBED and next(failures, False) else None
    stack.start("music-1", "music-2", "beat-1")
    music.start(skip_sync=True)
    wait_until(ended, 90, "the run has ended", last=describe)
    assert music.status().songs == {"COMPLETED": 30}
    assert (count(provider, CHAT), count(provider, EMBED)) == (3, 4)
    times = [record.time for record in provider.records if record.path == CHAT]
    assert all(later - earlier >= 2.95 for earlier, later in zip(times, times[2:], strict=False))
    assert 429 not in provider.counts


@pytest.mark.rotating
def test_pause_stops_new_calls_and_resume_ends_the_run(stack: Stack, provider: ProviderServer) -> None:
    limits("1000/s")
    add_songs_here()
    provider.script.latency_s = 1.0
    stack.start("music-1", "beat-1")
    music.start(skip_sync=True)
    assert provider.wait_for_calls(1, 90)
    music.pause()
    seen = time.monotonic()
    wait_until(lambda: music.status().active_jobs == 0, 90, "the call under way has ended", last=describe)
    wait_until(lambda: time.monotonic() > seen + 5, 10, "some time has passed")
    assert len(provider.records) == 1
    assert music.status().is_paused
    provider.script.latency_s = 0.0
    music.resume()
    wait_until(ended, 90, "the run has ended", last=describe)
    assert (count(provider, CHAT), count(provider, EMBED)) == (3, 3)

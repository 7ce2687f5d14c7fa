"""The music flow on real Celery workers: killed, paused, and within the limits of the provider's gate."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.settings import get_settings
from pipeline.storage.context import Context
from tests.support import songs
from tests.support.music import add_songs
from tests.support.provider_server import Fault, ProviderServer
from tests.support.stack import ROLES, Stack
from tests.support.subsonic_server import SubsonicServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults
QUEUES = "control,metadata-generation,metadata-only,embedding-only"
CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer(answer=songs.answer) as server:
        yield server


@pytest.fixture
def subsonic() -> Iterator[SubsonicServer]:
    with SubsonicServer(30) as server:
        yield server


@pytest.fixture
def settings_env(provider: ProviderServer, subsonic: SubsonicServer) -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__AI__BASE_URL": provider.base_url,
        "PENSTOCK_PROVIDERS__AI__API_KEY": "k",
        "PENSTOCK_PROVIDERS__AI__MODEL": "writer",
        "PENSTOCK_MUSIC__PROVIDER": "ai",
        "PENSTOCK_MUSIC__EMBEDDINGS_PROVIDER": "ai",
        "PENSTOCK_MUSIC__SERVER_URL": subsonic.url,
        "PENSTOCK_MUSIC__USER": "ann",
        "PENSTOCK_MUSIC__PASSWORD": "sesame",
        "PENSTOCK_SWEEP_INTERVAL_S": "1",
        "PENSTOCK_PRESENCE_TTL_S": "3",
        "PENSTOCK_PRESENCE_INTERVAL_S": "0.5",
    }


@pytest.fixture
def database_url(data_dir: Path) -> str:
    return f"sqlite:///{data_dir / 'penstock.db'}"


@pytest.fixture
def stack(
    context: Context, data_dir: Path, redis_url: str, database_url: str, settings_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stack]:  # fmt: skip
    monkeypatch.setitem(ROLES, "music", ["worker", "-Q", QUEUES, "-P", "threads", "-c", "4"])
    monkeypatch.setitem(ROLES, "calls", ["worker", "-Q", QUEUES.partition(",")[2], "-P", "prefork", "-c", "1"])
    monkeypatch.setitem(ROLES, "control", ["worker", "-Q", "control", "-P", "threads", "-c", "4"])
    with Stack(data_dir, database_url, redis_url, **settings_env) as stack:
        yield stack


def limits(value: str) -> None:
    from datetime import UTC, datetime

    from pipeline.engine import live
    from pipeline.providers import gates
    from pipeline.storage.context import get_context

    known = gates.known_settings(get_settings())

    def work(session: object) -> None:
        for name in ("metadata-generation", "metadata-only", "embedding-only"):
            live.change(session, known, f"queue.{name}.limits", value, datetime.now(UTC))  # type: ignore[arg-type]

    get_context().db.run(work)
    gates.sync(get_context())


def ended() -> bool:
    from tasks import music

    run = music.status().run
    return run is not None and run.outcome is not None


def stand() -> object:
    from tasks import music

    return music.status().contract()


def count(provider: ProviderServer, path: str) -> int:
    return sum(record.path == path for record in provider.records)


def test_start_syncs_enqueues_and_describes_all_songs(stack: Stack, provider: ProviderServer) -> None:
    from tasks import music

    limits("1000/s")
    stack.start("music-1", "beat-1")
    music.start()
    with pytest.raises(music.AlreadyRunning):
        music.start()
    wait_until(ended, 60, "the run has ended", last=stand)
    found = music.status()
    assert found.songs == {"COMPLETED": 30}
    assert (count(provider, CHAT), count(provider, EMBED)) == (3, 3)
    assert found.run is not None
    assert found.run.sync_report is not None
    assert found.run.sync_report["added"] == 30


def test_worker_killed_in_a_call_costs_that_call_and_nothing_else(stack: Stack, provider: ProviderServer) -> None:
    from tasks import music

    limits("1000/s")
    add_songs_of(stack)
    provider.push(Fault("hang"))
    stack.start("calls-1", "control-1", "beat-1")
    music.start(skip_sync=True)
    assert provider.wait_for_calls(1, 40)
    stack["calls-1"].kill_group()
    stack.start("calls-2")
    wait_until(ended, 90, "the run has ended", last=stand)
    assert music.status().songs == {"COMPLETED": 30}
    assert (count(provider, CHAT), count(provider, EMBED)) == (4, 3)


def test_limit_holds_and_failed_embedding_is_tried_without_new_metadata(stack: Stack, provider: ProviderServer) -> None:
    from tasks import music

    limits("2/3s")
    add_songs_of(stack)
    failures = iter([True])
    provider.script.rule = lambda record: Fault(status=503) if record.path == EMBED and next(failures, False) else None
    stack.start("music-1", "music-2", "beat-1")
    music.start(skip_sync=True)
    wait_until(ended, 90, "the run has ended", last=stand)
    assert music.status().songs == {"COMPLETED": 30}
    assert (count(provider, CHAT), count(provider, EMBED)) == (3, 4)
    times = [record.time for record in provider.records if record.path == CHAT]
    assert all(later - earlier >= 2.95 for earlier, later in zip(times, times[2:], strict=False))
    assert 429 not in provider.counts


def test_pause_stops_new_calls_and_resume_ends_the_run(stack: Stack, provider: ProviderServer) -> None:
    from tasks import music

    limits("1000/s")
    add_songs_of(stack)
    provider.script.latency_s = 1.0
    stack.start("music-1", "beat-1")
    music.start(skip_sync=True)
    assert provider.wait_for_calls(1, 40)
    music.pause()
    seen = time.monotonic()
    wait_until(lambda: music.status().active_jobs == 0, 20, "the call under way has ended", last=stand)
    wait_until(lambda: time.monotonic() > seen + 5, 10, "some time has passed")
    assert len(provider.records) == 1
    assert music.status().is_paused
    provider.script.latency_s = 0.0
    music.resume()
    wait_until(ended, 60, "the run has ended", last=stand)
    assert (count(provider, CHAT), count(provider, EMBED)) == (3, 3)


def add_songs_of(_: Stack) -> None:
    from pipeline.storage.context import get_context

    add_songs(get_context(), 30)

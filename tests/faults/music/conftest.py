"""A fleet for the music flow, over a real Subsonic server and a provider that counts its calls."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.storage.context import Context
from tests.support import songs
from tests.support.music import services
from tests.support.provider_server import ProviderServer
from tests.support.stack import ROLES, Stack
from tests.support.subsonic_server import SubsonicServer

CALLS = "metadata-generation,metadata-only,embedding-only,vision.ai,vision.other"


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer(answer=songs.answer) as server:
        yield server


@pytest.fixture
def subsonic() -> Iterator[SubsonicServer]:
    with SubsonicServer(30) as server:
        yield server


@pytest.fixture
def settings_env(
    provider: ProviderServer, subsonic: SubsonicServer, other: ProviderServer, extra_env: dict[str, str]
) -> dict[str, str]:
    own = {
        "PENSTOCK_PROVIDERS__AI__API_KEY": "k",
        "PENSTOCK_MUSIC__EMBEDDINGS_PROVIDER": "ai",
        "PENSTOCK_SWEEP_INTERVAL_S": "1",
        "PENSTOCK_PRESENCE_TTL_S": "3",
        "PENSTOCK_PRESENCE_INTERVAL_S": "0.5",
        "PENSTOCK_PROVIDERS__OTHER__BASE_URL": other.base_url,
        "PENSTOCK_PROVIDERS__OTHER__API_KEY": "k",
        "PENSTOCK_PROVIDERS__OTHER__MODEL": "second",
    }
    return services(provider.base_url, subsonic.url) | own | extra_env


@pytest.fixture
def stack(
    context: Context,
    data_dir: Path,
    redis_url: str,
    database_url: str,
    settings_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stack]:
    monkeypatch.setitem(ROLES, "music", ["worker", "-Q", f"control,{CALLS}", "-P", "threads", "-c", "4"])
    monkeypatch.setitem(ROLES, "calls", ["worker", "-Q", CALLS, "-P", "prefork", "-c", "1"])
    monkeypatch.setitem(ROLES, "control", ["worker", "-Q", "control", "-P", "threads", "-c", "4"])
    with Stack(data_dir, database_url, redis_url, **settings_env) as stack:
        yield stack


@pytest.fixture
def other() -> Iterator[ProviderServer]:
    """The provider that stands in for `ai`, where a test says so."""
    with ProviderServer(answer=songs.answer) as server:
        yield server

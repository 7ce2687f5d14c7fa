"""A fleet for the music flow, over a real Subsonic server and a provider that counts its calls."""

from collections.abc import Iterator

import pytest

from tests.faults.conftest import QUICK
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
        "PENSTOCK_MUSIC__EMBEDDINGS_PROVIDER": "ai",
        "PENSTOCK_PROVIDERS__OTHER__BASE_URL": other.base_url,
        "PENSTOCK_PROVIDERS__OTHER__API_KEY": "k",
        "PENSTOCK_PROVIDERS__OTHER__MODEL": "second",
    }
    return services(provider.base_url, subsonic.url) | own | QUICK | extra_env


@pytest.fixture
def stack(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A stack with workers of this flow."""
    monkeypatch.setitem(ROLES, "music", ["worker", "-Q", f"control,{CALLS}", "-P", "threads", "-c", "4"])
    monkeypatch.setitem(ROLES, "calls", ["worker", "-Q", CALLS, "-P", "prefork", "-c", "1"])
    monkeypatch.setitem(ROLES, "control", ["worker", "-Q", "control", "-P", "threads", "-c", "4"])
    return stack


@pytest.fixture
def other() -> Iterator[ProviderServer]:
    """The provider that a test may configure as the fallback of `ai`."""
    with ProviderServer(answer=songs.answer) as server:
        yield server

"""A provider that writes and embeds, and a driver that does the workers' part."""

from collections.abc import Iterator

import pytest

from pipeline.storage.context import Context
from tests.support import songs
from tests.support.music import Driver, change, services
from tests.support.provider_server import ProviderServer


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer(answer=songs.answer) as server:
        yield server


@pytest.fixture
def settings_env(provider: ProviderServer) -> dict[str, str]:
    return services(provider.base_url, embeds=True)


@pytest.fixture
def driver(context: Context, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver on a context without limits that delay tests. Transactions launch no messages."""
    monkeypatch.setattr("tasks.flow.send", lambda *_: None)
    for name in ("metadata-generation", "metadata-only", "embedding-only"):
        change(context, f"queue.{name}.limits", "1000/s")
    return Driver(context)

"""A whole fleet for each test: workers by role and beat, over real servers and a provider that counts its calls."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.storage.context import Context
from tests.faults.flow import Flow
from tests.support.provider_server import ProviderServer
from tests.support.stack import Stack

KEY = "test-key"
QUICK = {
    "PENSTOCK_SWEEP_INTERVAL_S": "1",
    "PENSTOCK_PRESENCE_TTL_S": "3",
    "PENSTOCK_PRESENCE_INTERVAL_S": "0.5",
}
"""Settings that shorten the time until a dead worker is missed and its work is launched."""


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    """A latency that lets tests hit a document of 20 pages in its middle."""
    with ProviderServer(latency_s=0.3, api_key=KEY) as server:
        yield server


@pytest.fixture
def extra_env(request: pytest.FixtureRequest) -> dict[str, str]:
    """Further settings, from `@settings(…)`."""
    return getattr(request, "param", {})


@pytest.fixture
def settings_env(provider: ProviderServer, extra_env: dict[str, str]) -> dict[str, str]:
    """Shorter times than the defaults, which have a test of their own."""
    return {
        "PENSTOCK_PROVIDER": "test",
        "PENSTOCK_PROVIDERS__TEST__BASE_URL": provider.base_url,
        "PENSTOCK_PROVIDERS__TEST__API_KEY": KEY,
        "PENSTOCK_PROVIDERS__TEST__MODEL": "test-model",
        "PENSTOCK_PROVIDERS__TEST__IMAGE_DPI": "36",
        "PENSTOCK_PROVIDERS__TEST__TIMEOUT_S": "20",
        "PENSTOCK_PROVIDERS__OTHER__BASE_URL": provider.base_url,
        "PENSTOCK_PROVIDERS__OTHER__API_KEY": KEY,
        "PENSTOCK_PROVIDERS__OTHER__MODEL": "other-model",
        "PENSTOCK_AI_CONCURRENCY": "8",
        **QUICK,
        **extra_env,
    }


@pytest.fixture
def stack(data_dir: Path, context: Context, settings_env: dict[str, str]) -> Iterator[Stack]:
    """A stack without processes. The test starts those that it needs."""
    settings = context.settings
    with Stack(data_dir, settings.database_url, settings.redis_url, **settings_env) as stack:
        yield stack


@pytest.fixture
def flow(context: Context, provider: ProviderServer, data_dir: Path) -> Flow:
    """Helpers for the documents flow."""
    return Flow(context, provider, data_dir)

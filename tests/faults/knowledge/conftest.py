"""A fleet for the knowledge flow, over a provider of vectors that counts its calls."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.storage.context import Context
from tests.faults.conftest import QUICK
from tests.faults.knowledge.flow import Knowledge
from tests.support.provider_server import ProviderServer


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer(latency_s=0.2) as server:
        yield server


@pytest.fixture
def settings_env(provider: ProviderServer, extra_env: dict[str, str]) -> dict[str, str]:
    """Small chunks and batches, so that small notes have several; short waits."""
    return {
        "PENSTOCK_PROVIDERS__TEST__BASE_URL": provider.base_url,
        "PENSTOCK_PROVIDERS__TEST__API_KEY": "k",
        "PENSTOCK_PROVIDERS__TEST__MODEL": "embedder",
        "PENSTOCK_PROVIDERS__TEST__TIMEOUT_S": "20",
        "PENSTOCK_PROVIDERS__TEST__BREAKER_FAIL_MAX": "1000",
        "PENSTOCK_PROVIDERS__TEST__BREAKER_COOL_DOWN_S": "1",
        "PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER": "test",
        "PENSTOCK_KNOWLEDGE__CHUNK_TOKENS": "32",
        "PENSTOCK_KNOWLEDGE__CHUNK_OVERLAP": "0",
        "PENSTOCK_KNOWLEDGE__BATCH_SIZE": "2",
        "PENSTOCK_KNOWLEDGE__BACKOFF_S": "[0.1,0.1]",
        **QUICK,
        **extra_env,
    }


@pytest.fixture
def kb(context: Context, provider: ProviderServer, data_dir: Path) -> Knowledge:
    """Helpers for the knowledge flow."""
    return Knowledge(context, provider, data_dir)

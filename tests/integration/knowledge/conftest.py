"""A provider of vectors that counts its calls, and a hand that does the workers' part."""

from collections.abc import Iterator

import pytest

from pipeline.engine.transaction import Dispatch
from pipeline.storage.context import Context
from tests.support.knowledge import add_base
from tests.support.knowledge_driver import Driver
from tests.support.provider_server import ProviderServer


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> Dispatch:
    """The launches of transactions. Sends no message: the hand does the work instead."""
    dispatch = Dispatch()
    monkeypatch.setattr(Context, "_send", lambda _, message: dispatch.add(message))
    return dispatch


@pytest.fixture
def extra_env() -> dict[str, str]:
    """Further settings. Modules override it."""
    return {}


@pytest.fixture
def settings_env(provider: ProviderServer, extra_env: dict[str, str]) -> dict[str, str]:
    """Small chunks and batches, so that small notes have several."""
    return {
        "PENSTOCK_PROVIDERS__EMB__BASE_URL": provider.base_url,
        "PENSTOCK_PROVIDERS__EMB__API_KEY": "k",
        "PENSTOCK_PROVIDERS__EMB__MODEL": "embedder",
        "PENSTOCK_PROVIDERS__EMB__TIMEOUT_S": "20",
        "PENSTOCK_PROVIDERS__EMB__BREAKER_FAIL_MAX": "1000",
        "PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER": "emb",
        "PENSTOCK_KNOWLEDGE__CHUNK_TOKENS": "32",
        "PENSTOCK_KNOWLEDGE__CHUNK_OVERLAP": "0",
        "PENSTOCK_KNOWLEDGE__BATCH_SIZE": "2",
    } | extra_env


@pytest.fixture
def driver(context: Context) -> Driver:
    return Driver(context)


@pytest.fixture
def base(context: Context) -> str:
    return add_base(context)

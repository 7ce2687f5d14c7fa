"""A provider of vision, text and embeddings."""

from collections.abc import Callable, Iterator

import pytest

from pipeline.storage.context import Context
from tests.integration.screenshots.conftest import Hand
from tests.support.provider_server import ProviderServer
from tests.support.screens import Driver, Models, paint

NewBatch = Callable[[], tuple[int, list[int]]]


@pytest.fixture
def models() -> Models:
    return Models()


@pytest.fixture
def provider(models: Models) -> Iterator[ProviderServer]:
    with ProviderServer(rule=models) as server:
        yield server


@pytest.fixture
def settings_env(provider: ProviderServer) -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__AI__BASE_URL": provider.base_url,
        "PENSTOCK_PROVIDERS__AI__API_KEY": "k",
        "PENSTOCK_PROVIDERS__AI__MODEL": "any",
        "PENSTOCK_SCREENSHOTS__VISION_PROVIDER": "ai",
        "PENSTOCK_SCREENSHOTS__VISION_MODEL": "eyes",
        "PENSTOCK_SCREENSHOTS__TEXT_PROVIDER": "ai",
        "PENSTOCK_SCREENSHOTS__TEXT_MODEL": "writer",
        "PENSTOCK_SCREENSHOTS__EMBEDDINGS_PROVIDER": "ai",
        "PENSTOCK_SCREENSHOTS__EMBEDDINGS_MODEL": "vectors",
        "PENSTOCK_SCREENSHOTS__SHARD_SIZE": "3",
    }


@pytest.fixture
def driver(context: Context) -> Driver:
    return Driver(context)


@pytest.fixture
def new_batch(hand: Hand) -> NewBatch:
    """Makes a batch of five frames with pictures: shards of three and two."""

    def make() -> tuple[int, list[int]]:
        batch, shots = hand.batch()
        paint(hand.context, shots)
        return batch, shots

    return make

"""A fleet for the screenshots flow, over a scripted vision and text model that counts its calls."""

from collections.abc import Iterator

import pytest

from pipeline.reading.sandbox import child
from pipeline.storage.context import Context
from tests.faults.conftest import QUICK
from tests.faults.screenshots.flow import Shots
from tests.support.provider_server import ProviderServer
from tests.support.screenshot_model import ScreenshotModel
from tests.support.stack import ROLES, Stack

QUEUES = "control,cpu,screenshot-vision,screenshot-text"
WORKER = ["worker", "-Q", QUEUES, "-P", "threads", "-c"]


@pytest.fixture
def model() -> ScreenshotModel:
    """A model that makes two events of every segment. Their merge gives a batch every kind of call."""
    return ScreenshotModel(pieces=2)


@pytest.fixture
def provider(model: ScreenshotModel) -> Iterator[ProviderServer]:
    with ProviderServer(answer=model.answer, picture_answer=model.answer, latency_s=0.3) as server:
        yield server


@pytest.fixture
def settings_env(provider: ProviderServer, extra_env: dict[str, str]) -> dict[str, str]:
    """Two shards in each batch, and short waits."""
    services = {
        f"PENSTOCK_PROVIDERS__{name}__{field}": value
        for name in ("EYE", "PEN")
        for field, value in {
            "BASE_URL": provider.base_url,
            "API_KEY": "k",
            "MODEL": f"{name.lower()}-model",
            "TIMEOUT_S": "20",
            # The breaker stays closed, so that only the outcomes of attempts matter.
            "BREAKER_FAIL_MAX": "1000",
        }.items()
    }
    return {
        **services,
        "PENSTOCK_SCREENSHOTS__VISION_PROVIDER": "eye",
        "PENSTOCK_SCREENSHOTS__TEXT_PROVIDER": "pen",
        "PENSTOCK_SCREENSHOTS__BATCH_SIZE": "10",
        "PENSTOCK_SCREENSHOTS__SHARD_SIZE": "5",
        # Longer than a busy machine needs to add ten frames, which must not become more batches.
        "PENSTOCK_SCREENSHOTS__BATCH_TIMEOUT_S": "10",
        "PENSTOCK_SCREENSHOTS__BACKOFF_S": "[0.1,0.1,0.1,0.1,0.1]",
        "PENSTOCK_SCREENSHOTS__JITTER_S": "0",
        **QUICK,
        **extra_env,
    }


@pytest.fixture
def stack(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A stack with workers of this flow."""
    monkeypatch.setitem(ROLES, "shots", [*WORKER, "6"])
    # One thread: with more, the death may repeat a sibling's paid call.
    monkeypatch.setitem(ROLES, "doomed", [*WORKER, "1", "-I", "tests.faults.screenshots.killing"])
    return stack


@pytest.fixture
def shots(context: Context, provider: ProviderServer) -> Shots:
    """Helpers for the screenshots flow."""
    child.prepare()  # each frame is read by a child of its own
    return Shots(context, provider)

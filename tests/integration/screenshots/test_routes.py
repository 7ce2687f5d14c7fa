"""The queue of each step depends on the configured providers and the open breakers."""

import pytest

from pipeline.flows.screenshots.live_settings import (
    CONTROL,
    CPU,
    SCREENSHOT_EMBEDDINGS,
    SCREENSHOT_TEXT,
    SCREENSHOT_VISION,
)
from pipeline.flows.screenshots.plan import Routes, routes
from pipeline.flows.screenshots.work.message import provider_and_model
from pipeline.providers import gates
from pipeline.storage.context import Context

OTHERS = "vision.other"
BASE = {
    "PENSTOCK_PROVIDERS__AI__BASE_URL": "http://127.0.0.1:9/v1",
    "PENSTOCK_PROVIDERS__AI__API_KEY": "k",
    "PENSTOCK_PROVIDERS__AI__MODEL": "any",
    "PENSTOCK_SCREENSHOTS__VISION_PROVIDER": "ai",
    "PENSTOCK_SCREENSHOTS__VISION_MODEL": "eyes",
    "PENSTOCK_SCREENSHOTS__TEXT_PROVIDER": "ai",
    "PENSTOCK_SCREENSHOTS__TEXT_MODEL": "writer",
}


def open_breaker(context: Context, name: str) -> None:
    gates.sync(context)
    gates.breaker(context, name).open(600, "by hand")


def test_without_providers_this_machine_does_all_steps(context: Context) -> None:
    assert routes(context) == Routes(CPU, CONTROL, CONTROL)


class TestProvider:
    """One provider without a fallback."""

    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return BASE | {"PENSTOCK_SCREENSHOTS__EMBEDDINGS_PROVIDER": "ai"}

    def test_each_step_has_its_queue(self, context: Context) -> None:
        assert routes(context) == Routes(SCREENSHOT_VISION, SCREENSHOT_TEXT, SCREENSHOT_EMBEDDINGS)

    def test_frames_and_vectors_wait_for_the_provider_and_expansion_continues_without_it(
        self, context: Context
    ) -> None:
        for name in ("ai:vision", "ai:text", "ai:embeddings"):
            open_breaker(context, name)
        assert routes(context) == Routes(SCREENSHOT_VISION, CONTROL, SCREENSHOT_EMBEDDINGS)


class TestStandIn:
    """Another provider is the fallback."""

    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return BASE | {
            "PENSTOCK_PROVIDERS__AI__FALLBACK": "other",
            "PENSTOCK_PROVIDERS__OTHER__BASE_URL": "http://127.0.0.1:9/v1",
            "PENSTOCK_PROVIDERS__OTHER__API_KEY": "k",
            "PENSTOCK_PROVIDERS__OTHER__MODEL": "second",
        }

    def test_the_fallback_uses_its_own_models(self, context: Context) -> None:
        open_breaker(context, "ai:vision")
        open_breaker(context, "ai:text")
        now = routes(context)
        assert (now.analyse, now.expand, now.merge) == (OTHERS, OTHERS, OTHERS)
        assert provider_and_model(context, OTHERS, "vision") == ("other", "")
        assert provider_and_model(context, OTHERS, "text") == ("other", "")
        assert provider_and_model(context, SCREENSHOT_VISION, "vision") == ("ai", "eyes")
        assert provider_and_model(context, SCREENSHOT_TEXT, "text") == ("ai", "writer")

    def test_frames_wait_and_expansion_continues_if_both_providers_are_down(self, context: Context) -> None:
        for name in ("ai:vision", "ai:text", "other:vision"):
            open_breaker(context, name)
        now = routes(context)
        assert (now.analyse, now.expand) == (SCREENSHOT_VISION, CONTROL)


class TestThisMachine:
    """This machine is the fallback."""

    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return BASE | {"PENSTOCK_PROVIDERS__AI__FALLBACK": "local"}

    def test_this_machine_recognises_text_and_rules_make_nodes(self, context: Context) -> None:
        open_breaker(context, "ai:vision")
        open_breaker(context, "ai:text")
        now = routes(context)
        assert (now.analyse, now.expand) == (CPU, CONTROL)

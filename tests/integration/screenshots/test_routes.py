"""Which queue a step goes to, by what is configured and which breakers are open."""

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


def test_without_providers_all_is_done_here(context: Context) -> None:
    assert routes(context) == Routes(CPU, CONTROL, CONTROL)


class TestProvider:
    """One provider, nobody to stand in for it."""

    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return BASE | {"PENSTOCK_SCREENSHOTS__EMBEDDINGS_PROVIDER": "ai"}

    def test_each_step_has_its_queue(self, context: Context) -> None:
        assert routes(context) == Routes(SCREENSHOT_VISION, SCREENSHOT_TEXT, SCREENSHOT_EMBEDDINGS)

    def test_frames_and_vectors_wait_for_it_and_nodes_do_without_it(self, context: Context) -> None:
        for name in ("ai:vision", "ai:text", "ai:embeddings"):
            open_breaker(context, name)
        assert routes(context) == Routes(SCREENSHOT_VISION, CONTROL, SCREENSHOT_EMBEDDINGS)


class TestStandIn:
    """Another provider stands in."""

    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return BASE | {
            "PENSTOCK_PROVIDERS__AI__FALLBACK": "other",
            "PENSTOCK_PROVIDERS__OTHER__BASE_URL": "http://127.0.0.1:9/v1",
            "PENSTOCK_PROVIDERS__OTHER__API_KEY": "k",
            "PENSTOCK_PROVIDERS__OTHER__MODEL": "second",
        }

    def test_it_looks_and_writes_by_its_own_model(self, context: Context) -> None:
        open_breaker(context, "ai:vision")
        open_breaker(context, "ai:text")
        now = routes(context)
        assert (now.analyse, now.expand, now.merge) == (OTHERS, OTHERS, OTHERS)
        assert provider_and_model(context, OTHERS, "vision") == ("other", "")
        assert provider_and_model(context, OTHERS, "text") == ("other", "")
        assert provider_and_model(context, SCREENSHOT_VISION, "vision") == ("ai", "eyes")
        assert provider_and_model(context, SCREENSHOT_TEXT, "text") == ("ai", "writer")

    def test_where_both_are_away_frames_wait_and_nodes_do_without(self, context: Context) -> None:
        for name in ("ai:vision", "ai:text", "other:vision"):
            open_breaker(context, name)
        now = routes(context)
        assert (now.analyse, now.expand) == (SCREENSHOT_VISION, CONTROL)


class TestThisMachine:
    """This machine stands in."""

    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return BASE | {"PENSTOCK_PROVIDERS__AI__FALLBACK": "local"}

    def test_text_is_recognised_here_and_nodes_are_made_by_rules(self, context: Context) -> None:
        open_breaker(context, "ai:vision")
        open_breaker(context, "ai:text")
        now = routes(context)
        assert (now.analyse, now.expand) == (CPU, CONTROL)

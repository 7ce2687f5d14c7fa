"""Libraries are read without any provider."""

import pytest


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {}

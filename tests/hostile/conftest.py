"""One stack for the whole collection."""

import shutil
from collections.abc import Iterator

import pytest

from tests.hostile.arena import Arena, opened
from tests.support.leftovers import session_folder, short_folder
from tests.support.provider_server import ProviderServer


@pytest.fixture(scope="module")
def harmful_provider() -> Iterator[ProviderServer]:
    """The AI service that the stack has as the provider `ai`."""
    with ProviderServer(api_key="secret-key") as server:
        yield server


@pytest.fixture(scope="module")
def arena(harmful_provider: ProviderServer) -> Iterator[Arena]:
    """A running stack for all hostile inputs. It ends after them, since it inspects all processes repeatedly."""
    session_folder().chmod(0o711)  # like `/tmp`: only the data folder itself is private
    root = short_folder()
    try:
        with opened(root, harmful_provider.base_url) as arena:
            yield arena
    finally:
        shutil.rmtree(root, ignore_errors=True)

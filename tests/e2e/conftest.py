"""One running stack for most tests. Tests that end or kill a stack start their own."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli, environment, provider_settings
from tests.support.leftovers import short_folder
from tests.support.provider_server import ProviderServer, Script

DEAD_PORT = 1
"""No server listens there."""


@pytest.fixture(scope="session")
def provider_server() -> Iterator[ProviderServer]:
    """The AI service that all stacks have as the provider `ai`."""
    with ProviderServer(api_key="secret-key", models=["vision-1", "vision-2"]) as server:
        yield server


@pytest.fixture
def provider(provider_server: ProviderServer) -> ProviderServer:
    """The AI service with its usual answers and without recorded calls."""
    provider_server.script = Script(api_key="secret-key", models=["vision-1", "vision-2"])
    provider_server.configure({"reset": True})
    return provider_server


@pytest.fixture(scope="session")
def shared_stack(provider_server: ProviderServer) -> Iterator[Cli]:
    """`penstock up` for all tests that only use it.

    Its providers: `ai`, which has a price; `single`, the same with one call at a time; `down`, where no server listens.
    """
    folder = short_folder()
    settings = provider_settings(provider_server.base_url)
    settings |= provider_settings(provider_server.base_url, "single") | {"PENSTOCK_PROVIDERS__SINGLE__CONCURRENCY": "1"}
    settings |= {"PENSTOCK_PROVIDERS__AI__PRICES": '{"vision-1": {"input": 1, "output": 4}}'}
    settings |= provider_settings(f"http://127.0.0.1:{DEAD_PORT}/v1", "down")
    settings |= {"PENSTOCK_DOCUMENTS__PAGE_TIMEOUT_S": "1200"}  # on a busy machine no page may fail
    cli = Cli(folder, folder, environment(folder, **settings))
    up = cli.real().start("up")
    try:
        up.wait_for("Penstock is up")
        yield cli
        up.interrupt()
        assert up.wait() == 0, up.output
    finally:
        cli.kill_everything()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cli(shared_stack: Cli, tmp_path: Path) -> Cli:
    """Runs commands on the running stack, in an empty current folder."""
    return shared_stack.at(tmp_path)


@pytest.fixture
def alone(provider: ProviderServer, tmp_path: Path) -> Iterator[Cli]:
    """Runs commands on an empty data folder without a stack, in an empty current folder."""
    folder = short_folder()
    cli = Cli(folder, tmp_path, environment(folder, **provider_settings(provider.base_url)))
    yield cli
    cli.kill_everything()
    shutil.rmtree(folder, ignore_errors=True)

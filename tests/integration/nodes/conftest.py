"""A node with two slots, and a scripted gateway for it."""

from collections.abc import Iterator

import pytest

from tests.support.scripted_gateway import (
    NodeLink,
    RunningAgent,
    ScriptedExecutor,
    ScriptedGateway,
    running_agent,
    scripted_gateway,
)


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with scripted_gateway() as started:
        yield started


@pytest.fixture
def executor() -> Iterator[ScriptedExecutor]:
    scripted = ScriptedExecutor()
    yield scripted
    scripted.go()


@pytest.fixture
def node(gateway: ScriptedGateway, executor: ScriptedExecutor) -> Iterator[RunningAgent]:
    """A node with two slots."""
    with running_agent(gateway, executor=executor) as running:
        yield running


@pytest.fixture
def link(gateway: ScriptedGateway, node: RunningAgent) -> NodeLink:
    return gateway.welcome()

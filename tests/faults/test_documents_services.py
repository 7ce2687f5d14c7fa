"""Redis and PostgreSQL that go away in the middle of a document."""

import pytest

from tests.faults.flow import POSTGRESQL, SQLITE, Flow
from tests.support.postgres import Postgres, ShutdownMode
from tests.support.redis_server import RedisServer
from tests.support.stack import FLEET, Stack

pytestmark = pytest.mark.faults


@pytest.fixture
def midway(stack: Stack, flow: Flow) -> str:
    """A document of 20 pages in its middle."""
    stack.start(*FLEET)
    document_id = flow.submit(20)
    flow.wait_for_calls(6)
    return document_id


def _finish(flow: Flow, document_id: str, images: dict[str, int], under_way: set[int]) -> None:
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images, again=under_way)


def test_redis_killed_and_restarted_with_its_data(midway: str, flow: Flow, redis_server: RedisServer) -> None:
    images = flow.images(midway)
    redis_server.kill()
    under_way = flow.held(midway)
    redis_server.start()
    _finish(flow, midway, images, under_way)


@SQLITE
def test_redis_killed_and_restarted_without_its_data(midway: str, flow: Flow, redis_server: RedisServer) -> None:
    images = flow.images(midway)
    redis_server.kill()
    redis_server.lose_data()
    under_way = flow.held(midway)
    redis_server.start()
    _finish(flow, midway, images, under_way)


def test_redis_emptied(midway: str, flow: Flow, redis_server: RedisServer) -> None:
    images = flow.images(midway)
    redis_server.flush()
    _finish(flow, midway, images, flow.held(midway))


@POSTGRESQL
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_postgresql_restarted(midway: str, flow: Flow, postgres: Postgres, mode: ShutdownMode) -> None:
    images = flow.images(midway)
    under_way = flow.held(midway)
    postgres.restart(mode)
    _finish(flow, midway, images, under_way)

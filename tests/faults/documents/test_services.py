"""Outages of Redis and PostgreSQL in the middle of a document."""

from collections.abc import Set as AbstractSet

import pytest

from tasks.documents.canvas import TASKS
from tests.faults.flow import POSTGRESQL, SQLITE, Flow, settings
from tests.support.postgres import Postgres, ShutdownMode
from tests.support.redis_server import RedisServer
from tests.support.stack import FLEET, Stack
from tests.support.waiting import wait_until

# Between two sweeps live workers have time to reconnect, so that none is missed twice.
pytestmark = [pytest.mark.faults, settings(SWEEP_INTERVAL_S="2")]


@pytest.fixture
def midway(stack: Stack, flow: Flow) -> str:
    """Submit a document of 20 pages and wait until it is in its middle."""
    stack.start(*FLEET)
    document_id = flow.submit(20)
    flow.wait_for_calls(6)
    return document_id


def _finish(flow: Flow, document_id: str, images: dict[str, int], under_way: AbstractSet[int] = frozenset()) -> None:
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images, repeated=under_way)


def test_workers_outlive_an_outage_of_redis(midway: str, stack: Stack, flow: Flow, redis_server: RedisServer) -> None:
    images = flow.images(midway)
    # kombu 5.7 cannot disconnect a worker that holds one message and waits for the next.
    TASKS.wake.apply_async(countdown=20)
    wait_until(lambda: "documents.wake" in str(flow.context.redis.hvals("unacked")), 90, "a worker holds the message")
    redis_server.kill()
    workers = [stack[name] for name in ("cpu-1", "control-1", "ai-1")]
    wait_until(lambda: all(worker.says("Cannot connect") for worker in workers), 90, "every worker has noticed")
    wait_until(lambda: not flow.held(midway), 90, "calls under way are committed without Redis")
    redis_server.start()
    _finish(flow, midway, images)
    assert all(running.alive for running in stack.running)


@SQLITE
def test_workers_outlive_a_redis_that_is_full(midway: str, stack: Stack, flow: Flow, redis_server: RedisServer) -> None:
    images = flow.images(midway)
    redis_server.limit_memory(1)
    wait_until(lambda: not flow.held(midway), 90, "calls under way are committed")
    stack.start("cpu-2")
    noticing = [stack[name] for name in ("ai-1", "beat-1", "cpu-2")]
    wait_until(
        lambda: all(worker.says("OOM command not allowed") for worker in noticing),
        90,
        "the new workers report the full Redis",
    )
    assert all(running.alive for running in stack.running)
    redis_server.limit_memory(0)
    _finish(flow, midway, images)
    assert all(running.alive for running in stack.running)


@pytest.mark.rotating
@POSTGRESQL
def test_redis_killed_and_restarted_without_its_data(midway: str, flow: Flow, redis_server: RedisServer) -> None:
    images = flow.images(midway)
    redis_server.kill()
    redis_server.lose_data()
    under_way = flow.held(midway)
    redis_server.start()
    _finish(flow, midway, images, under_way)


@pytest.mark.rotating
@SQLITE
def test_redis_killed_and_restarted_with_its_data(midway: str, flow: Flow, redis_server: RedisServer) -> None:
    images = flow.images(midway)
    redis_server.kill()
    under_way = flow.held(midway)
    redis_server.start()
    _finish(flow, midway, images, under_way)


def test_redis_emptied(midway: str, flow: Flow, redis_server: RedisServer) -> None:
    images = flow.images(midway)
    redis_server.flush()
    _finish(flow, midway, images)


@POSTGRESQL
def test_postgresql_restarted(midway: str, flow: Flow, postgres: Postgres) -> None:
    images = flow.images(midway)
    postgres.restart("fast")
    flow.wait_for_calls(12)
    postgres.restart("immediate")
    _finish(flow, midway, images)


@pytest.mark.rotating
@POSTGRESQL
def test_repeated_restarts_of_postgresql_during_fast_pages(stack: Stack, flow: Flow, postgres: Postgres) -> None:
    flow.provider.script.latency_s = 0
    stack.start(*FLEET, "ai-2")
    document_id = flow.submit(240)
    restarts: tuple[tuple[int, ShutdownMode], ...] = ((20, "fast"), (80, "immediate"), (140, "fast"))
    for calls, mode in restarts:
        flow.wait_for_calls(calls)
        images = flow.images(document_id)
        postgres.restart(mode)
    _finish(flow, document_id, images)

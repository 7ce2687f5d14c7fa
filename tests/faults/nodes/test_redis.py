"""A Redis that dies and restarts, and a Redis that loses its data, under load."""

import pytest

from pipeline.engine.errors import ErrorKind
from tests.faults.nodes.fleet import Fleet
from tests.support.node_load import Load
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.faults
TIMES = 2


def test_a_restart_of_a_killed_redis_costs_time_and_no_request(fleet: Fleet, redis_server: RedisServer) -> None:
    fleet.start("a", "b")
    fleet.node("n1")
    with fleet.load() as load:
        for _ in range(TIMES):
            load.go_on(20)
            redis_server.kill()
            redis_server.start()
        load.go_on(20)
    assert_answered_or_retryable(load, "redis_unavailable", "state_lost")
    _assert_new_jobs_run(fleet)


@pytest.mark.rotating
def test_an_emptied_redis_ends_jobs_under_way_and_new_jobs_run(fleet: Fleet, redis_server: RedisServer) -> None:
    fleet.start("a", "b")
    fleet.node("n1")
    with fleet.load() as load:
        for _ in range(TIMES):
            load.go_on(20)
            redis_server.flush()
        load.go_on(20)
    assert_answered_or_retryable(load, "state_lost")
    _assert_new_jobs_run(fleet)


def _assert_new_jobs_run(fleet: Fleet) -> None:
    with fleet.load(name="new") as new:
        new.go_on(20)
    assert not new.failed
    fleet.wait_until_quiet()


def assert_answered_or_retryable(load: Load, *codes: str) -> None:
    assert load.done == len(load.asked)
    assert {request: reply.result["text"] for request, reply in load.answered.items()} == {
        request: request for request in load.answered
    }
    assert max(load.answers.values()) == 1
    assert {(error.kind, error.code) for error in load.failed.values()} <= {
        (ErrorKind.TRANSIENT, code) for code in codes
    }

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from redis import Redis

from pipeline.engine.connection import connect
from pipeline.engine.wakeups import MAX_DELAY_S, plan_wakeup
from tests.support.waiting import wait_until


@pytest.fixture
def redis(redis_url: str) -> Iterator["Redis"]:
    with connect(redis_url) as client:
        yield client


def test_the_first_caller_sends_the_message(redis: "Redis") -> None:
    assert plan_wakeup(redis, "documents", 30)


def test_a_later_wake_up_relies_on_the_message_under_way(redis: "Redis") -> None:
    plan_wakeup(redis, "documents", 10)
    assert not plan_wakeup(redis, "documents", 10)
    assert not plan_wakeup(redis, "documents", 60)


def test_an_earlier_wake_up_sends_its_own_message(redis: "Redis") -> None:
    plan_wakeup(redis, "documents", 50)
    assert plan_wakeup(redis, "documents", 20)
    assert not plan_wakeup(redis, "documents", 30)
    assert plan_wakeup(redis, "documents", 1)


def test_one_of_many_simultaneous_callers_sends(redis: "Redis") -> None:
    barrier = Barrier(16)

    def ask(_: int) -> bool:
        barrier.wait(60)
        return plan_wakeup(redis, "documents", 30)

    with ThreadPoolExecutor(16) as pool:
        # A caller that asks a millisecond later is due a millisecond later.
        assert sum(pool.map(ask, range(16))) == 1


def test_a_past_wake_up_holds_no_later_one_back(redis: "Redis") -> None:
    plan_wakeup(redis, "documents", 0.05)
    wait_until(lambda: plan_wakeup(redis, "documents", 30), 60, "the first wake-up has passed")


def test_a_wake_up_that_is_due_is_sent_at_once(redis: "Redis") -> None:
    assert plan_wakeup(redis, "documents", 0)
    assert plan_wakeup(redis, "other", -5)


def test_long_waits_are_left_to_the_sweeper(redis: "Redis") -> None:
    assert plan_wakeup(redis, "documents", MAX_DELAY_S)
    assert not plan_wakeup(redis, "other", MAX_DELAY_S + 0.001)
    assert plan_wakeup(redis, "other", 1), "a refused wake-up is not recorded"


def test_flows_are_woken_separately(redis: "Redis") -> None:
    assert plan_wakeup(redis, "documents", 30)
    assert plan_wakeup(redis, "screenshots", 30)


def test_an_emptied_redis_costs_at_most_one_message_more(redis: "Redis") -> None:
    plan_wakeup(redis, "documents", 30)
    redis.flushall()
    assert plan_wakeup(redis, "documents", 30)
    assert not plan_wakeup(redis, "documents", 30)


def test_redis_keeps_no_keys_of_past_wake_ups(redis: "Redis") -> None:
    plan_wakeup(redis, "documents", 0.01)
    (key,) = redis.keys("*")
    assert 0 < redis.pttl(key) <= 1010

from collections.abc import Iterator

import pytest
from redis import Redis

from pipeline.engine.connection import connect
from pipeline.engine.leases import Leases
from pipeline.engine.presence import Presence
from tests.support.waiting import wait_until

TTL_S = 60


@pytest.fixture
def redis(redis_url: str) -> Iterator["Redis"]:
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def presence(redis: "Redis") -> Presence:
    return Presence(redis)


def test_a_worker_that_renews_is_alive_until_it_leaves(presence: Presence) -> None:
    presence.renew("w1", TTL_S)
    presence.renew("w2", TTL_S)
    assert presence.alive() == {"w1", "w2"}
    presence.leave("w1")
    presence.leave("w1")
    assert presence.alive() == {"w2"}


def test_a_worker_that_stops_renewing_is_missed(presence: Presence) -> None:
    presence.renew("killed", 0.05)
    presence.renew("alive", TTL_S)
    wait_until(lambda: presence.alive() == {"alive"}, 60, "the killed worker's presence ended")


def test_a_worker_counts_as_dead_when_it_is_missed_twice_in_a_row(presence: Presence) -> None:
    assert presence.missed_twice({"w1"}) == set()
    assert presence.missed_twice({"w1"}) == {"w1"}
    assert presence.missed_twice({"w1"}) == {"w1"}


def test_checks_in_quick_succession_declare_no_worker_dead(presence: Presence) -> None:
    for _ in range(3):  # delayed checks follow closely, and a living process may not have renewed in between
        assert presence.missed_twice({"w1"}, apart_s=3600) == set()
    assert presence.missed_twice({"w1"}) == {"w1"}


def test_a_living_worker_is_never_missed(presence: Presence) -> None:
    presence.renew("w1", TTL_S)
    for _ in range(3):
        assert presence.missed_twice({"w1", "w2"}) <= {"w2"}


def test_a_worker_that_returned_must_be_missed_twice_to_count_as_dead(presence: Presence) -> None:
    presence.missed_twice({"w1"})
    presence.renew("w1", TTL_S)
    assert presence.missed_twice({"w1"}) == set()
    presence.leave("w1")
    assert presence.missed_twice({"w1"}) == set()
    assert presence.missed_twice({"w1"}) == {"w1"}


def test_an_emptied_redis_takes_no_work_from_living_workers(presence: Presence, redis: "Redis") -> None:
    presence.renew("w1", TTL_S)
    presence.missed_twice({"w1"})
    redis.flushall()
    assert presence.missed_twice({"w1"}) == set()
    presence.renew("w1", TTL_S)
    assert presence.missed_twice({"w1"}) == set()


def test_only_workers_in_the_query_are_reported(presence: Presence) -> None:
    presence.missed_twice({"w1", "w2"})
    assert presence.missed_twice({"w2", "w3"}) == {"w2"}
    assert presence.missed_twice(set()) == set()


def test_a_miss_long_ago_does_not_count(presence: Presence, redis: "Redis") -> None:
    presence.missed_twice({"w1"}, within_s=0.05)
    marker = Leases(redis, "clock")
    marker.acquire("tick", 0.1)
    wait_until(lambda: not marker.holders(), 60, "the miss has expired")
    assert presence.missed_twice({"w1"}) == set()


def test_a_miss_counts_for_the_given_time(presence: Presence, redis: "Redis") -> None:
    presence.missed_twice({"w1"}, within_s=3 * 600)
    (key,) = redis.keys("*missed*")
    assert redis.pttl(key) > 1_700_000

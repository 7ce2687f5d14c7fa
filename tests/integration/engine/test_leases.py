from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from redis import Redis

from pipeline.engine.connection import connect
from pipeline.engine.leases import Leases
from tests.support.waiting import wait_until


@pytest.fixture
def redis(redis_url: str) -> Iterator["Redis"]:
    with connect(redis_url) as client:
        yield client


def at_once(count: int, act: Callable[[int], bool]) -> list[bool]:
    barrier = Barrier(count)

    def acquire(number: int) -> bool:
        barrier.wait(60)
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(acquire, range(count)))


def test_simultaneous_requests_never_get_more_leases_than_the_limit(redis: "Redis") -> None:
    leases = Leases(redis, "s", limit=3)
    granted = at_once(24, lambda number: leases.acquire(f"h{number}", 60))
    assert sum(granted) == 3
    assert leases.holders() == {f"h{number}" for number, got in enumerate(granted) if got}


def test_a_holder_may_renew_its_lease_when_all_are_held(redis: "Redis") -> None:
    leases = Leases(redis, "s", limit=1)
    assert leases.acquire("a", 60)
    assert not leases.acquire("b", 60)
    assert leases.acquire("a", 60)
    assert leases.holders() == {"a"}


def test_a_released_lease_is_free_for_others(redis: "Redis") -> None:
    leases = Leases(redis, "s", limit=1)
    leases.acquire("a", 60)
    leases.release("a")
    assert leases.acquire("b", 60)


def test_releasing_another_s_lease_is_harmless(redis: "Redis") -> None:
    leases = Leases(redis, "s", limit=2)
    leases.acquire("a", 60)
    leases.release("b")
    leases.release()
    leases.release("a", "b")
    leases.release("a")
    assert leases.holders() == set()


def test_several_leases_are_released_at_once(redis: "Redis") -> None:
    leases = Leases(redis, "s")
    for holder in "abc":
        leases.acquire(holder, 60)
    leases.release("a", "c")
    assert leases.holders() == {"b"}


def test_an_expired_lease_ends_and_others_stay(redis: "Redis") -> None:
    leases = Leases(redis, "s", limit=2)
    leases.acquire("short", 0.05)
    leases.acquire("long", 60)
    assert not leases.acquire("next", 60) or "short" not in leases.holders()
    wait_until(lambda: leases.acquire("next", 60), 60, "the short lease ended")
    assert leases.holders() == {"long", "next"}


def test_renewing_prolongs_a_lease(redis: "Redis") -> None:
    leases = Leases(redis, "s", limit=1)
    leases.acquire("a", 0.2)
    leases.acquire("a", 60)
    marker = Leases(redis, "clock")
    marker.acquire("tick", 0.25)
    wait_until(lambda: not marker.holders(), 60, "the first lease would have ended")
    assert leases.holders() == {"a"}


def test_a_short_lease_does_not_end_the_scope_of_a_long_one(redis: "Redis") -> None:
    leases = Leases(redis, "s")
    leases.acquire("long", 60)
    leases.acquire("short", 0.05)
    wait_until(lambda: leases.holders() == {"long"}, 60, "the short lease ended")


def test_scopes_are_independent(redis: "Redis") -> None:
    assert Leases(redis, "s1", limit=1).acquire("a", 60)
    assert Leases(redis, "s2", limit=1).acquire("a", 60)
    Leases(redis, "s1").clear()
    assert Leases(redis, "s1").holders() == set()
    assert Leases(redis, "s2").holders() == {"a"}


def test_a_lowered_limit_keeps_held_leases_and_grants_no_further_lease(redis: "Redis") -> None:
    for holder in "abc":
        Leases(redis, "s", limit=3).acquire(holder, 60)
    fewer = Leases(redis, "s", limit=1)
    assert fewer.acquire("a", 60)
    assert not fewer.acquire("d", 60)
    fewer.release("a", "b", "c")
    assert fewer.acquire("d", 60)


def test_redis_keeps_no_keys_after_the_last_lease_has_ended(redis: "Redis") -> None:
    Leases(redis, "s").acquire("a", 0.05)
    Leases(redis, "t").acquire("a", 60)
    Leases(redis, "t").release("a")
    wait_until(lambda: not redis.keys("*"), 60, "Redis has expired the keys")


def test_leases_work_after_redis_has_forgotten_the_scripts(redis: "Redis") -> None:
    leases = Leases(redis, "s", limit=1)
    leases.acquire("a", 60)
    redis.script_flush()
    assert leases.holders() == {"a"}
    redis.script_flush()
    assert not leases.acquire("b", 60)

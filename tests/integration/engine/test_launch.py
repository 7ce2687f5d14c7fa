"""Places of messages: who may send, and when a message counts as lost."""

from collections.abc import Iterator, Sequence

import pytest
from redis import Redis

from pipeline.engine.connection import connect
from pipeline.engine.launch import Place, Places, Wanted, launch
from pipeline.engine.presence import Presence

QUEUE = "vision.one"
ONE = Place("documents:a", QUEUE)


@pytest.fixture
def redis(redis_url: str) -> Iterator["Redis"]:
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def places(redis: "Redis") -> Places:
    return Places(redis)


class Sent:
    """Publishes into a real list, as kombu does."""

    def __init__(self, redis: "Redis", wanted: list[Wanted]) -> None:
        self.redis, self.wanted = redis, wanted
        self.all: list[tuple[str, int]] = []

    def __call__(self, at: int, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.redis.lpush(self.wanted[at].queue, f"{self.wanted[at].scope}|{number}")
            self.all.append((self.wanted[at].scope, number))


def _launch(places: Places, redis: "Redis", *wanted: Wanted) -> list[tuple[str, int]]:
    sent = Sent(redis, list(wanted))
    launch(places, wanted, sent)
    return sent.all


def _deliver(places: Places, redis: "Redis", holder: str) -> str:
    scope, number = str(redis.rpop(QUEUE)).split("|")
    return places.begin(Place(scope, QUEUE, int(number)), holder, 60)


def test_a_scope_never_has_more_messages_than_places(places: Places, redis: "Redis") -> None:
    asked = Wanted("documents:a", QUEUE, 3)
    assert _launch(places, redis, asked) == [("documents:a", 0), ("documents:a", 1), ("documents:a", 2)]
    assert _launch(places, redis, asked, Wanted("documents:b", QUEUE, 1)) == [("documents:b", 0)]


def test_a_message_whose_place_a_living_other_has_is_one_too_many(places: Places, redis: "Redis") -> None:
    Presence(redis).renew("w:1:a", 60)
    assert places.begin(ONE, "w:1:a/m1", 60) == ""
    assert places.begin(ONE, "w:2:b/m2", 60) == "w:1:a/m1"
    assert not places.wait(ONE, "w:2:b/m2")
    assert places.begin(ONE, "w:2:b/m2", 60, dead_holder="w:1:a/m1") == ""


def test_a_dead_holders_place_is_free(places: Places, redis: "Redis") -> None:
    Presence(redis).renew("w:1:a", 60)
    assert places.begin(ONE, "w:1:a/m1", 60) == ""
    Presence(redis).leave("w:1:a")
    assert places.begin(ONE, "w:2:b/m2", 60) == ""


def test_a_waiting_message_is_lost_when_its_queue_has_turned_over_without_it(places: Places, redis: "Redis") -> None:
    others = [Wanted(f"documents:{n}", QUEUE) for n in range(5)]
    _launch(places, redis, *others[:3])
    _launch(places, redis, Wanted("documents:lost", QUEUE))
    redis.lpop(QUEUE)  # its message is lost
    _launch(places, redis, *others[3:])
    for n in range(4):
        assert _launch(places, redis, Wanted("documents:lost", QUEUE)) == [], "it may still be in there"
        assert _deliver(places, redis, f"w:1:a/{n}") == ""
    assert _launch(places, redis, Wanted("documents:lost", QUEUE)) == [], "that may have been itself"
    assert _deliver(places, redis, "w:1:a/5") == ""
    redis.lpush(QUEUE, "documents:x|0")
    assert _launch(places, redis, Wanted("documents:lost", QUEUE)) == [("documents:lost", 0)]


def test_nothing_is_lost_before_a_gate_that_lets_nothing_through(places: Places, redis: "Redis") -> None:
    asked = Wanted("documents:a", QUEUE, 2)
    _launch(places, redis, asked)
    _age(redis)
    assert _launch(places, redis, asked) == [], "its queue is not empty, and has not turned over"


def test_in_an_empty_queue_a_message_that_waits_is_lost_after_a_while(places: Places, redis: "Redis") -> None:
    asked = Wanted("documents:a", QUEUE)
    _launch(places, redis, asked)
    redis.delete(QUEUE)
    assert _launch(places, redis, asked) == [], "it may be on its way to a worker"
    _age(redis)
    assert _launch(places, redis, asked) == [("documents:a", 0)]


def test_a_lane_that_queues_up_again_keeps_its_place(places: Places, redis: "Redis") -> None:
    asked = Wanted("documents:a", QUEUE)
    _launch(places, redis, asked)
    assert _deliver(places, redis, "w:1:a/m1") == ""
    assert places.wait(ONE, "w:1:a/m1")
    redis.lpush(QUEUE, "documents:a|0")
    assert _launch(places, redis, asked) == []
    assert _deliver(places, redis, "w:1:a/m2") == ""
    places.leave(ONE, "w:1:a/m2")
    assert _launch(places, redis, asked) == [("documents:a", 0)]


def test_messages_of_another_priority_are_another_queue(places: Places, redis: "Redis") -> None:
    late = Wanted("documents:late", QUEUE, priority=3)
    places.reserve([late])
    redis.lpush(f"{QUEUE}\x06\x163", "documents:late|0")
    for n in range(9):
        _launch(places, redis, Wanted(f"documents:{n}", QUEUE))
        assert _deliver(places, redis, f"w:1:a/{n}") == ""
    _age(redis)
    assert places.reserve([late]) == [[]], "nothing of its priority has passed it"


def test_an_emptied_redis_forgets_messages_and_places_alike(places: Places, redis: "Redis") -> None:
    asked = Wanted("documents:a", QUEUE)
    _launch(places, redis, asked)
    redis.flushall()
    assert _launch(places, redis, asked) == [("documents:a", 0)]


def _age(redis: "Redis") -> None:
    """All waiting places began to wait a minute ago."""
    for key in redis.scan_iter("penstock:places:*:*"):
        for field, place in redis.hgetall(key).items():
            kind, mark, since, priority = str(place).split()
            redis.hset(key, field, f"{kind} {mark} {int(since) - 60_000} {priority}")


def test_a_message_that_comes_again_and_again_passes_nobody(places: Places, redis: "Redis") -> None:
    deadly, patient = Wanted("documents:deadly", QUEUE), Wanted("documents:patient", QUEUE)
    _launch(places, redis, deadly, patient)
    for n in range(9):  # each time, its process dies
        assert places.begin(Place("documents:deadly", QUEUE), f"w:{n}:a/m1", 60) == ""
        redis.hset("penstock:places:documents:deadly", f"{QUEUE}|0", f"b w:{n}:a/m1 0 99999999999999")
    assert _launch(places, redis, patient) == [], "it has waited all the while"


def test_each_worker_may_let_some_pass_that_its_gate_refuses(places: Places, redis: "Redis") -> None:
    Presence(redis).renew("w:1:a", 60)
    others = [Wanted(f"documents:{n}", QUEUE) for n in range(4)]
    _launch(places, redis, Wanted("documents:patient", QUEUE), *others)
    patient = redis.rpop(QUEUE)
    for n in range(3):
        assert _deliver(places, redis, f"w:1:a/m{n}") == ""
        assert _launch(places, redis, Wanted("documents:patient", QUEUE)) == [], "a worker has it in its hands"
    redis.rpush(QUEUE, str(patient))

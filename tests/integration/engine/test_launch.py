"""Places of messages: which messages a launch may send, and when a message counts as lost."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from redis import Redis

from pipeline.engine.connection import connect
from pipeline.engine.launch import Place, Places, Wanted, launch
from pipeline.engine.presence import Presence
from tests.support.redis_server import RedisServer

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
    """A sender that publishes into a real Redis list, as kombu does."""

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
    wanted = Wanted("documents:a", QUEUE, 3)
    assert _launch(places, redis, wanted) == [("documents:a", 0), ("documents:a", 1), ("documents:a", 2)]
    assert _launch(places, redis, wanted, Wanted("documents:b", QUEUE, 1)) == [("documents:b", 0)]


def test_a_message_is_surplus_if_a_living_process_holds_its_place(places: Places, redis: "Redis") -> None:
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


@pytest.mark.parametrize("ended", [True, False])
def test_a_failover_frees_the_places_of_messages_at_work(ended: bool, tmp_path: Path) -> None:
    wanted = Wanted("documents:a", QUEUE)
    with RedisServer(tmp_path) as server, server.client() as redis:
        places = Places(redis)
        Presence(redis).renew("w:1:a", 60)
        assert places.begin(ONE, "w:1:a/m1", 600) == ""
        replicated = redis.dump("penstock:places:documents:a")
        if ended:
            places.leave(ONE, "w:1:a/m1")
        assert _launch(places, redis, wanted) == ([("documents:a", 0)] if ended else [])
        redis.delete(QUEUE)
        redis.restore("penstock:places:documents:a", 0, replicated, replace=True)
        redis.replicaof("127.0.0.1", "1")
        redis.replicaof("NO", "ONE")  # a replica that becomes a master
        assert _launch(places, redis, wanted) == [("documents:a", 0)], (
            "the new master does not know whether m1 has ended"
        )
        assert _deliver(places, redis, "w:1:a/m2") == ""
        assert _launch(places, redis, wanted) == []
        assert not places.wait(ONE, "w:1:a/m1"), "the place is that of the later message"


def test_a_waiting_message_is_lost_when_its_queue_has_turned_over_without_it(places: Places, redis: "Redis") -> None:
    others = [Wanted(f"documents:{n}", QUEUE) for n in range(5)]
    _launch(places, redis, *others[:3])
    _launch(places, redis, Wanted("documents:lost", QUEUE))
    redis.lpop(QUEUE)  # its message is lost
    _launch(places, redis, *others[3:])
    for n in range(4):
        assert _launch(places, redis, Wanted("documents:lost", QUEUE)) == [], "the message may still be in its queue"
        assert _deliver(places, redis, f"w:1:a/{n}") == ""
    assert _launch(places, redis, Wanted("documents:lost", QUEUE)) == [], (
        "the last delivered message may have been the missing one"
    )
    assert _deliver(places, redis, "w:1:a/5") == ""
    redis.lpush(QUEUE, "documents:x|0")
    assert _launch(places, redis, Wanted("documents:lost", QUEUE)) == [("documents:lost", 0)]


def test_messages_before_a_closed_gate_do_not_count_as_lost(places: Places, redis: "Redis") -> None:
    wanted = Wanted("documents:a", QUEUE, 2)
    _launch(places, redis, wanted)
    _age(redis)
    assert _launch(places, redis, wanted) == [], "the queue still holds the messages that were in it"


def test_a_message_missing_from_an_empty_queue_is_lost_after_a_while(places: Places, redis: "Redis") -> None:
    wanted = Wanted("documents:a", QUEUE)
    _launch(places, redis, wanted)
    redis.delete(QUEUE)
    assert _launch(places, redis, wanted) == [], "the message may be on its way to a worker"
    _age(redis)
    assert _launch(places, redis, wanted) == [("documents:a", 0)]


def test_a_requeued_lane_keeps_its_place(places: Places, redis: "Redis") -> None:
    wanted = Wanted("documents:a", QUEUE)
    _launch(places, redis, wanted)
    assert _deliver(places, redis, "w:1:a/m1") == ""
    assert places.wait(ONE, "w:1:a/m1")
    redis.lpush(QUEUE, "documents:a|0")
    assert _launch(places, redis, wanted) == []
    assert _deliver(places, redis, "w:1:a/m2") == ""
    places.leave(ONE, "w:1:a/m2")
    assert _launch(places, redis, wanted) == [("documents:a", 0)]


def test_messages_of_another_priority_are_another_queue(places: Places, redis: "Redis") -> None:
    late = Wanted("documents:late", QUEUE, priority=3)
    places.reserve([late])
    redis.lpush(f"{QUEUE}\x06\x163", "documents:late|0")
    for n in range(9):
        _launch(places, redis, Wanted(f"documents:{n}", QUEUE))
        assert _deliver(places, redis, f"w:1:a/{n}") == ""
    _age(redis)
    assert places.reserve([late]) == [[]], "no message of its priority has passed it"


def test_an_emptied_redis_forgets_messages_and_places_alike(places: Places, redis: "Redis") -> None:
    wanted = Wanted("documents:a", QUEUE)
    _launch(places, redis, wanted)
    redis.flushall()
    assert _launch(places, redis, wanted) == [("documents:a", 0)]


def _age(redis: "Redis") -> None:
    """Set the start of every place's wait back by a minute."""
    for key in redis.scan_iter("penstock:places:*:*"):
        for field, place in redis.hgetall(key).items():
            kind, mark, since, *others = str(place).split()
            redis.hset(key, field, " ".join((kind, mark, str(int(since) - 60_000), *others)))


def test_repeated_deliveries_of_a_message_count_once(places: Places, redis: "Redis") -> None:
    deadly, patient = Wanted("documents:deadly", QUEUE), Wanted("documents:patient", QUEUE)
    _launch(places, redis, deadly, patient)
    for n in range(9):  # each time, its process dies
        assert places.begin(Place("documents:deadly", QUEUE), f"w:{n}:a/m1", 60) == ""
        redis.hset("penstock:places:documents:deadly", f"{QUEUE}|0", f"b w:{n}:a/m1 0 99999999999999")
    assert _launch(places, redis, patient) == [], "the place has waited since the first launch"


def test_messages_that_workers_hold_do_not_count_as_lost(places: Places, redis: "Redis") -> None:
    Presence(redis).renew("w:1:a", 60)
    others = [Wanted(f"documents:{n}", QUEUE) for n in range(4)]
    _launch(places, redis, Wanted("documents:patient", QUEUE), *others)
    patient = redis.rpop(QUEUE)
    for n in range(3):
        assert _deliver(places, redis, f"w:1:a/m{n}") == ""
        assert _launch(places, redis, Wanted("documents:patient", QUEUE)) == [], "a worker holds the message"
    redis.rpush(QUEUE, str(patient))

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pipeline.engine import events
from pipeline.engine.connection import connect
from tests.support.redis_server import free_port
from tests.support.waiting import wait_until


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def redis(redis_url: str, request: pytest.FixtureRequest) -> Iterator["Redis"]:
    with connect(f"{redis_url}?protocol={request.param}") as client:
        yield client


def publish(redis: "Redis", *names: str) -> None:
    for name in names:
        events.publish(redis, "documents", name, document="d1")


def names(redis: "Redis", after: str) -> list[str]:
    return [fields["event"] for _, fields in events.read(redis, after, 0.01)]


def test_an_event_is_read_with_its_fields(redis: "Redis") -> None:
    events.publish(redis, "documents", "page", document="d1", page=3, name="报告 ü.pdf")
    ((_, fields),) = events.read(redis, "0-0", 1)
    assert fields == {"flow": "documents", "event": "page", "document": "d1", "page": "3", "name": "报告 ü.pdf"}


def test_events_are_replayed_in_order_from_an_id(redis: "Redis") -> None:
    publish(redis, "a", "b", "c")
    ids = [event_id for event_id, _ in events.read(redis, "0-0", 1)]
    assert names(redis, "0-0") == ["a", "b", "c"]
    assert names(redis, ids[0]) == ["b", "c"]
    assert names(redis, ids[2]) == []


def test_reading_on_from_the_last_id_misses_nothing_and_repeats_nothing(redis: "Redis") -> None:
    assert events.last_id(redis) == "0-0"
    after = events.last_id(redis)
    publish(redis, "a", "b")
    assert names(redis, after) == ["a", "b"]
    after = events.last_id(redis)
    assert names(redis, after) == []
    publish(redis, "c")
    assert names(redis, after) == ["c"]


def test_a_reader_that_waits_is_woken_by_the_first_event(redis: "Redis", redis_url: str) -> None:
    def read() -> list[str]:
        with connect(redis_url) as own:
            return [fields["event"] for _, fields in events.read(own, "$", 30)]

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        wait_until(lambda: redis.info("clients")["blocked_clients"], 90, "the reader waits")
        publish(redis, "woken")
        assert reading.result(10) == ["woken"]


def test_a_reader_stops_waiting_after_its_time_limit(redis: "Redis") -> None:
    for block_s in (0, 0.01):
        assert list(events.read(redis, "$", block_s)) == []


def test_the_stream_stays_small(redis: "Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS", 200)
    publish(redis, *(f"e{number}" for number in range(1000)))
    remaining = names(redis, "0-0")
    assert 200 <= len(remaining) < 500
    assert remaining[-1] == "e999"


def test_publishing_while_redis_is_away_raises_no_error() -> None:
    with Redis(port=free_port(), retry=Retry(NoBackoff(), 0)) as away:
        publish(away, "lost")

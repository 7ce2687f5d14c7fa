"""A lane of several messages is one part of its chord: counted once, whatever its hops and deliveries are."""

from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker
from redis import Redis

from tasks.flow import send_next_hop
from tasks.presence import identity
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

LONG, DOUBLED, LAST = "long", "doubled", "last"


def record(redis: "Redis", key: str, value: str) -> None:
    redis.rpush(key, value)


def recorded(redis: "Redis", key: str) -> list[str]:
    return [str(value) for value in redis.lrange(key, 0, -1)]


@pytest.fixture
def redis(redis_server: RedisServer, redis_url: str) -> Iterator["Redis"]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def app(redis: "Redis", redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An application with production's result backend, whose lanes make hops as production's do."""
    monkeypatch.setattr(identity, "begin", lambda *_: None)  # the worker announces no presence
    app = Celery("hops", broker=redis_url, backend=redis_url, set_as_current=False)
    app.loader.override_backends = {"redis": "tasks.celery_internals.results:ChordCounter"}
    app.conf.update(
        result_backend_transport_options={"result_chord_ordered": True}, broker_connection_retry_on_startup=False
    )

    @app.task(bind=True, ignore_result=True, shared=False, name="lane")
    def lane(self: Any, kind: str, hops: int, lane_id: str = "") -> None:
        lane_id = lane_id or self.request.id
        record(redis, f"ids:{lane_id}", self.request.id)
        record(redis, "roots", self.request.root_id)
        # The last lane ends well behind all others, so that a lane which counts twice would end the chord too soon.
        waits = kind == LAST and len(recorded(redis, "ended")) < 3
        if not (waits or hops):
            record(redis, "ended", kind)
            return
        again = lane.si(kind, hops if waits else hops - 1, lane_id)
        if kind == DOUBLED and hops == 2:
            again.set(task_id=f"{lane_id}-delivered-twice")
            send_next_hop(copy(self.request), again)
        send_next_hop(self.request, again)

    @app.task(ignore_result=True, shared=False, name="body")
    def body() -> None:
        record(redis, "ended", "body")

    @app.task(bind=True, ignore_result=True, shared=False, name="lanes")
    def lanes(self: Any) -> None:
        self.replace(chord(group(lane.si(LONG, 3), lane.si(LONG, 1)), body.si()))

    @app.task(ignore_result=True, shared=False, name="tail")
    def tail() -> None:
        record(redis, "ended", "tail")

    return app


def test_a_chord_of_lanes_completes_once_also_if_a_hop_is_delivered_twice(app: Celery, redis: "Redis") -> None:
    lane, body = app.tasks["lane"], app.tasks["body"]
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
        chord(group(lane.si(LONG, 5), lane.si(DOUBLED, 2), lane.si(LAST, 3)), body.si()).apply_async()
        wait_until(lambda: "body" in recorded(redis, "ended"), 90, "the chord has ended")
        body.si().apply_async()  # behind everything that still waits
        wait_until(lambda: recorded(redis, "ended").count("body") > 1, 90, "the queue is empty")
    ended = recorded(redis, "ended")
    assert sorted(ended[:4]) == sorted([LONG, DOUBLED, DOUBLED, LAST]), "the chord waited for every lane"
    assert ended[3:] == [LAST, "body", "body"], "its body ran once, and ours"


def test_a_chord_that_replaces_a_message_keeps_the_tail_of_its_chain(app: Celery, redis: "Redis") -> None:
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
        first = chain(app.tasks["lanes"].si(), app.tasks["tail"].si()).apply_async()
        wait_until(lambda: "tail" in recorded(redis, "ended"), 90, "the tail has run")
    assert recorded(redis, "ended") == [LONG, LONG, "body", "tail"]
    assert len({*recorded(redis, "roots"), first.parent.id}) == 1


def test_a_hop_takes_over_the_rest_of_its_chain(app: Celery, redis: "Redis") -> None:
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
        chain(app.tasks["lane"].si(LONG, 2), app.tasks["tail"].si()).apply_async()
        wait_until(lambda: "tail" in recorded(redis, "ended"), 90, "the tail has run")
    assert recorded(redis, "ended") == [LONG, "tail"]


def test_hops_have_ids_of_their_own_under_one_root(app: Celery, redis: "Redis") -> None:
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
        first = app.tasks["lane"].si(LONG, 3).apply_async()
        wait_until(lambda: recorded(redis, "ended"), 90, "the lane has ended")
    ids = recorded(redis, f"ids:{first.id}")
    assert ids[0] == first.id
    assert len(set(ids)) == len(ids) == 4
    assert set(recorded(redis, "roots")) == {first.id}

"""Messages that several workers take at the same time and give back, on a real broker."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from celery import Celery
from kombu.connection import Connection

from pipeline.engine.connection import connect
from pipeline.engine.launch import Places, Wanted
from tasks.celery_internals.messages import give_back

QUEUE = "gated"
COUNT = 4


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("arrival", broker=redis_url, set_as_current=False)
    app.conf.update(task_default_queue=QUEUE)
    return app


@pytest.fixture
def channels(app: Celery, redis_url: str) -> Iterator[list[Any]]:
    """A channel for each message, as if each had its own worker."""
    connections = [Connection(redis_url) for _ in range(COUNT)]
    yield [connection.channel() for connection in connections]
    for connection in connections:
        connection.release()


def _send(app: Celery, numbers: Sequence[int], priority: int = 0) -> None:
    for number in numbers:
        app.send_task("any", (number,), queue=QUEUE, priority=priority, ignore_result=True)


def _number(message: Any) -> int:
    return int(message.decode()[0][0])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_returned_messages_keep_their_order_whatever_the_order_of_their_return(
    app: Celery, channels: list[Any], order: tuple[int, ...]
) -> None:
    _send(app, range(COUNT))
    messages = [channel.basic_get(QUEUE) for channel in channels[:3]]
    assert [_number(message) for message in messages] == [0, 1, 2]
    for number in order:
        give_back(channels[number], messages[number])
    assert [_number(channels[3].basic_get(QUEUE)) for _ in range(COUNT)] == [0, 1, 2, 3]


@pytest.mark.parametrize("priority", [0, 6])
def test_a_message_that_a_worker_holds_while_its_gate_refuses_it_is_not_lost(
    app: Celery, channels: list[Any], redis_url: str, priority: int
) -> None:
    with connect(redis_url) as redis:
        places, wanted = Places(redis), [Wanted("documents:a", QUEUE, priority=priority)]
        assert places.reserve(wanted) == [[0]]
        _send(app, [1], priority)
        name = f"penstock:places:{wanted[0].scope}"
        (field, place), *_ = redis.hgetall(name).items()
        kind, mark, _, step = str(place).split()
        redis.hset(name, field, f"{kind} {mark} 0 {step}")  # it has waited since 1970
        give_back(channels[0], channels[0].basic_get(QUEUE))
        assert channels[1].basic_get(QUEUE) is not None, "a worker holds the message, and its queue is empty"
        assert places.reserve(wanted) == [[]]


def test_a_message_goes_back_to_its_own_priority_and_only_once(app: Celery, channels: list[Any]) -> None:
    _send(app, [6, 7], priority=6)
    _send(app, [0])
    urgent, later = channels[0].basic_get(QUEUE), channels[1].basic_get(QUEUE)
    give_back(channels[1], later)
    give_back(channels[0], urgent)
    channels[2].qos.restore_by_tag(later.delivery_tag)
    give_back(channels[1], later)
    assert [_number(channels[3].basic_get(QUEUE)) for _ in range(3)] == [0, 6, 7]
    assert channels[3].basic_get(QUEUE) is None

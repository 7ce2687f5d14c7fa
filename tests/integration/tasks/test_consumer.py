"""The gate-aware consumer on a real worker: order of arrival, no polling, woken when there is room."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu.entity import Exchange, Queue
from redis import Redis

from pipeline.engine.guarded_call import request_hooks
from pipeline.engine.metrics import queue_depths
from pipeline.providers import gates, queue_control
from pipeline.storage.context import Context
from tasks import queues
from tasks.celery_internals import consumer, messages
from tasks.presence import holder_of, identity
from tests.support.waiting import wait_until

GATED, OTHER = "vision.p", "vision.q"
PROVIDERS = {name: {"base_url": "http://127.0.0.1:1/v1", "model": "m", "limits": "4/0.3s"} for name in "pq"}
WITHIN_S = 30


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PROVIDERS": json.dumps(PROVIDERS)}


@pytest.fixture
def app(context: Context, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An application with production's consumer, whose task makes one call and notes its number."""
    monkeypatch.setattr(identity, "begin", lambda _hostname: None)
    app = Celery("gated", broker=redis_url, set_as_current=False)
    app.conf.update(
        worker_consumer="tasks.consumer:GateConsumer",
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        task_queues=[Queue(name, Exchange(name), routing_key=name) for name in (GATED, OTHER)],
        broker_connection_retry_on_startup=False,
    )

    @app.task(bind=True, ignore_result=True, shared=False, name="gated")
    def gated(self: Any, number: int) -> None:
        queue = self.request.delivery_info["routing_key"]
        guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
        assert guarded is not None

        def ask() -> None:
            hooks = request_hooks.get()
            assert hooks is not None
            hooks.ready()
            hooks.sent()
            context.redis.rpush(f"worked:{queue}", number)

        guarded.call(ask, lambda _: ("m", 0, 0))

    for queue in (GATED, OTHER):
        queue_control.change_setting(context, f"queue.{queue}.concurrency", "1")
    return app


@pytest.fixture
def worker(app: Celery) -> Iterator[ExitStack]:
    """`enter_context` of what `_worker` gives starts it; the test's messages are sent before that, or after."""
    with ExitStack() as stack:
        yield stack


def _worker(app: Celery) -> Any:
    return start_worker(app, pool="threads", concurrency=4, perform_ping_check=False, shutdown_timeout=20)


def _worked(redis: "Redis", queue: str = GATED) -> list[int]:
    return [int(number) for number in redis.lrange(f"worked:{queue}", 0, -1)]


def _send(app: Celery, numbers: range, queue: str = GATED, priority: int = 0) -> None:
    for number in numbers:
        app.tasks["gated"].apply_async((number,), queue=queue, priority=priority)


def test_messages_are_worked_on_in_the_order_of_their_arrival_though_they_were_refused(
    app: Celery, context: Context, worker: ExitStack
) -> None:
    _send(app, range(20))
    _send(app, range(5), OTHER)
    worker.enter_context(_worker(app))
    wait_until(lambda: len(_worked(context.redis)) == 20, WITHIN_S, "all were worked on")
    assert _worked(context.redis) == list(range(20))
    assert _worked(context.redis, OTHER) == list(range(5)), "another provider's queue has an order of its own"


def test_a_refused_message_stays_in_its_priority_and_keeps_its_place_there(
    app: Celery, context: Context, worker: ExitStack
) -> None:
    queue_control.pause(context, GATED, None)
    _send(app, range(10, 16), priority=6)
    _send(app, range(6), priority=0)
    worker.enter_context(_worker(app))
    _send(app, range(3), OTHER)
    wait_until(lambda: len(_worked(context.redis, OTHER)) == 3, WITHIN_S, "an open queue of the same worker flows")
    assert not _worked(context.redis)
    queue_control.resume(context, GATED)
    wait_until(lambda: len(_worked(context.redis)) == 12, WITHIN_S, "all were worked on")
    # What a gate holds while it is asked may be overtaken by what was more urgent, never by its equals.
    assert [number for number in _worked(context.redis) if number < 10] == list(range(6))
    assert [number for number in _worked(context.redis) if number >= 10] == list(range(10, 16))


def test_a_worker_at_a_full_gate_hardly_asks_and_is_woken_when_a_slot_is_free(
    app: Celery, context: Context, worker: ExitStack
) -> None:
    gate = gates.gate(context, GATED)
    assert gate.admit("elsewhere").granted
    worker.enter_context(_worker(app))
    _send(app, range(3))
    time.sleep(1.5)  # until it is idle before the gate
    before, begun = _commands(context.redis), time.monotonic()
    time.sleep(3)
    per_s = (_commands(context.redis) - before) / (time.monotonic() - begun)
    assert not _worked(context.redis)
    assert per_s < 60, "the gate is polled"
    # Somewhere within the second for which it would wait.
    took_s = []
    for number in range(4):
        gate.finish("elsewhere")
        begun = time.monotonic()
        wait_until(lambda sent=number: len(_worked(context.redis)) >= sent + 3, WITHIN_S, "woken")
        took_s.append(time.monotonic() - begun)
        wait_until(lambda: gate.admit("elsewhere").granted, WITHIN_S, "the slot is taken again")
        _send(app, range(number + 3, number + 4))
        time.sleep(0.3 + number * 0.1)
    assert sorted(took_s)[1] < 0.4, f"waited for the safety net: {took_s}"


def test_a_worker_that_meets_a_gate_without_limits_has_them_brought_back(
    app: Celery, context: Context, worker: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[bool] = []

    def sync_now() -> None:
        met.append(gates.sync(context))

    monkeypatch.setattr("tasks.consumer.sync_now", sync_now)
    context.redis.flushall()
    _send(app, range(3))
    worker.enter_context(_worker(app))
    wait_until(lambda: len(_worked(context.redis)) == 3, WITHIN_S, "all were worked on")
    assert met[0]


def _commands(redis: "Redis") -> int:
    """Commands that Redis ran so far, those of scripts among them."""
    return sum(int(stat["calls"]) for stat in redis.info("commandstats").values())


def test_a_closed_queue_is_not_consumed_from_after_a_start_or_a_reconnect(
    app: Celery, context: Context, worker: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    give_back = messages.give_back
    monkeypatch.setattr(
        consumer,
        "give_back",
        lambda channel, message: (refused.append(message.delivery_info["routing_key"]), give_back(channel, message)),
    )
    queue_control.pause(context, GATED, None, "the key is exchanged")
    _send(app, range(3))
    running = worker.enter_context(_worker(app))
    _send(app, range(1), OTHER)
    wait_until(lambda: len(_worked(context.redis, OTHER)) == 1, WITHIN_S, "the other queue flows")
    context.redis.client_kill_filter(_type="normal", skipme=True)
    _send(app, range(1, 2), OTHER)
    wait_until(lambda: len(_worked(context.redis, OTHER)) == 2, WITHIN_S, "it is connected again")
    assert refused == []
    said = running.consumer.why_not()
    assert said == {GATED: "operator: the key is exchanged"}
    assert [queue.name for queue in running.consumer.consumed()] == [OTHER]
    queue_control.resume(context, GATED)
    wait_until(lambda: len(_worked(context.redis)) == 3, WITHIN_S, "it flows again")


def test_a_worker_is_paused_before_any_message_comes_and_is_resumed_at_once(
    app: Celery, context: Context, worker: ExitStack
) -> None:
    consumer = _consumer(worker.enter_context(_worker(app)))
    _send(app, range(1))
    wait_until(lambda: _worked(context.redis) == [0], WITHIN_S, "it works")
    queues.pause(GATED)
    wait_until(lambda: not consumer.task_consumer.consuming_from(GATED), WITHIN_S, "told, it consumes no longer")
    assert consumer.task_consumer.consuming_from(OTHER)
    _send(app, range(1, 3))
    _send(app, range(3), OTHER)
    wait_until(lambda: len(_worked(context.redis, OTHER)) == 3, WITHIN_S, "another provider's queue flows on")
    _wait_for_looks(consumer, 2)
    assert queue_depths(context.redis, [GATED])[GATED] == 2, "no message was taken out"
    assert not consumer.task_consumer.consuming_from(GATED)
    queues.resume(GATED)
    wait_until(lambda: _worked(context.redis) == [0, 1, 2], WITHIN_S, "told, it consumes again")


def test_a_worker_that_nobody_told_stops_by_asking_and_returns_by_looking(
    app: Celery, context: Context, worker: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "gates_changed", lambda *_: None)
    consumer = _consumer(worker.enter_context(_worker(app)))
    queues.pause(GATED)
    assert consumer.task_consumer.consuming_from(GATED)
    _send(app, range(2))
    wait_until(lambda: not consumer.task_consumer.consuming_from(GATED), WITHIN_S, "refused, it consumes no longer")
    _wait_for_looks(consumer, 2)  # by then no token is kept for it
    queues.resume(GATED)
    wait_until(lambda: _worked(context.redis) == [0, 1], WITHIN_S, "it looked by itself")


def _consumer(started: Any) -> Any:
    """The consumer of a worker that was started."""
    return started.consumer


def _wait_for_looks(consumer: Any, count: int) -> None:
    """Wait until a consumer has looked at gates so often from now on."""
    looks: list[str] = []
    look_at = consumer.look_at

    def counted(queue: str) -> None:
        look_at(queue)
        looks.append(queue)

    consumer.look_at = counted
    wait_until(lambda: len(looks) >= count, WITHIN_S, "it looks at the gate of the queue that it left")

"""The gate-aware consumer on a real worker: it keeps the order of arrival, does not poll, and wakes for a free slot."""

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
    """An application with production's consumer, whose task makes one call and records its number."""
    monkeypatch.setattr(identity, "begin", lambda *_: None)
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
    """A stack that stops a worker after the test: `enter_context(_worker(app))` starts one."""
    with ExitStack() as stack:
        yield stack


def _worker(app: Celery) -> Any:
    return start_worker(app, pool="threads", concurrency=4, perform_ping_check=False, shutdown_timeout=20)


def _worked(redis: "Redis", queue: str = GATED) -> list[int]:
    return [int(number) for number in redis.lrange(f"worked:{queue}", 0, -1)]


def _send(app: Celery, numbers: range, queue: str = GATED, priority: int = 0) -> None:
    for number in numbers:
        app.tasks["gated"].apply_async((number,), queue=queue, priority=priority)


def test_refused_messages_run_in_the_order_of_their_arrival(app: Celery, context: Context, worker: ExitStack) -> None:
    _send(app, range(20))
    _send(app, range(5), OTHER)
    worker.enter_context(_worker(app))
    wait_until(lambda: len(_worked(context.redis)) == 20, WITHIN_S, "all messages have run")
    assert _worked(context.redis) == list(range(20))
    assert _worked(context.redis, OTHER) == list(range(5)), "another provider's queue keeps its own order"


def test_a_refused_message_stays_in_its_priority_and_keeps_its_place_there(
    app: Celery, context: Context, worker: ExitStack
) -> None:
    queue_control.pause(context, GATED, None)
    _send(app, range(10, 16), priority=6)
    _send(app, range(6), priority=0)
    worker.enter_context(_worker(app))
    _send(app, range(3), OTHER)
    wait_until(lambda: len(_worked(context.redis, OTHER)) == 3, WITHIN_S, "the worker's open queue is consumed")
    assert not _worked(context.redis)
    queue_control.resume(context, GATED)
    wait_until(lambda: len(_worked(context.redis)) == 12, WITHIN_S, "all messages have run")
    # A message of higher priority may overtake a message whose gate is being asked; one of equal priority may not.
    assert [number for number in _worked(context.redis) if number < 10] == list(range(6))
    assert [number for number in _worked(context.redis) if number >= 10] == list(range(10, 16))


def test_a_worker_at_a_full_gate_does_not_poll_and_is_woken_by_a_free_slot(
    app: Celery, context: Context, worker: ExitStack
) -> None:
    gate = gates.gate(context, GATED)
    assert gate.admit("elsewhere").granted
    worker.enter_context(_worker(app))
    _send(app, range(3))
    time.sleep(1.5)  # until the worker waits for the gate
    before, start = _commands(context.redis), time.monotonic()
    time.sleep(3)
    per_s = (_commands(context.redis) - before) / (time.monotonic() - start)
    assert not _worked(context.redis)
    assert per_s < 60, "the worker polls the gate"
    # A slot frees at different points of the second that the worker would wait.
    took_s = []
    for number in range(4):
        gate.finish("elsewhere")
        start = time.monotonic()
        wait_until(lambda sent=number: len(_worked(context.redis)) >= sent + 3, WITHIN_S, "woken")
        took_s.append(time.monotonic() - start)
        wait_until(lambda: gate.admit("elsewhere").granted, WITHIN_S, "the slot is held again")
        _send(app, range(number + 3, number + 4))
        time.sleep(0.3 + number * 0.1)
    assert sorted(took_s)[1] < 0.4, f"the worker waited for its next check: {took_s}"


def test_a_worker_at_a_gate_without_limits_restores_them(
    app: Celery, context: Context, worker: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    corrected: list[bool] = []

    def sync_now() -> None:
        corrected.append(gates.sync(context))

    monkeypatch.setattr("tasks.consumer.sync_now", sync_now)
    context.redis.flushall()
    _send(app, range(3))
    worker.enter_context(_worker(app))
    wait_until(lambda: len(_worked(context.redis)) == 3, WITHIN_S, "all messages have run")
    assert corrected[0]


def _commands(redis: "Redis") -> int:
    """Return the number of commands that Redis has run, including those of scripts."""
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
    wait_until(lambda: _worked(context.redis, OTHER) == [0], WITHIN_S, "the open queue is consumed")
    # The broker would deliver an unacknowledged message again, and its slot would refuse the next message.
    wait_until(lambda: not context.redis.hlen("unacked"), WITHIN_S, "the message is acknowledged")
    context.redis.client_kill_filter(_type="normal", skipme=True)
    _send(app, range(1, 2), OTHER)
    wait_until(lambda: _worked(context.redis, OTHER) == [0, 1], WITHIN_S, "the worker has reconnected")
    assert refused == []
    assert running.consumer.waiting_reasons() == {GATED: "operator: the key is exchanged"}
    assert [queue.name for queue in running.consumer.consumed()] == [OTHER]
    queue_control.resume(context, GATED)
    wait_until(lambda: len(_worked(context.redis)) == 3, WITHIN_S, "the resumed queue is consumed")


def test_a_broadcast_pauses_and_resumes_a_worker_at_once(app: Celery, context: Context, worker: ExitStack) -> None:
    consumer = worker.enter_context(_worker(app)).consumer
    _send(app, range(1))
    wait_until(lambda: _worked(context.redis) == [0], WITHIN_S, "the message has run")
    queues.pause(GATED)
    wait_until(lambda: not consumer.task_consumer.consuming_from(GATED), WITHIN_S, "the broadcast stops the consumer")
    assert consumer.task_consumer.consuming_from(OTHER)
    _send(app, range(1, 3))
    _send(app, range(3), OTHER)
    wait_until(lambda: len(_worked(context.redis, OTHER)) == 3, WITHIN_S, "another provider's queue is consumed")
    _wait_for_checks(consumer, 2)
    assert queue_depths(context.redis, [GATED])[GATED] == 2, "both messages stay in the queue"
    assert not consumer.task_consumer.consuming_from(GATED)
    queues.resume(GATED)
    wait_until(lambda: _worked(context.redis) == [0, 1, 2], WITHIN_S, "the broadcast resumes the consumer")


def test_a_worker_without_the_broadcast_stops_at_a_refusal_and_returns_after_a_check(
    app: Celery, context: Context, worker: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "gates_changed", lambda *_: None)
    consumer = worker.enter_context(_worker(app)).consumer
    queues.pause(GATED)
    assert consumer.task_consumer.consuming_from(GATED)
    _send(app, range(2))
    wait_until(lambda: not consumer.task_consumer.consuming_from(GATED), WITHIN_S, "a refusal stops the consumer")
    _wait_for_checks(consumer, 2)  # by then no wake-up is kept for it
    queues.resume(GATED)
    wait_until(lambda: _worked(context.redis) == [0, 1], WITHIN_S, "its own check resumes the consumer")


def _wait_for_checks(consumer: Any, count: int) -> None:
    """Wait until the consumer has checked its gates `count` times from now on."""
    checks: list[str] = []
    follow_gate = consumer.follow_gate

    def counted(queue: str) -> None:
        follow_gate(queue)
        checks.append(queue)

    consumer.follow_gate = counted
    wait_until(lambda: len(checks) >= count, WITHIN_S, "the consumer checks the gate of the queue that it left")

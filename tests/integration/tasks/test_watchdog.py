"""The watchdog's tick, and its announcements: workers check gates, flows launch work."""

import json
from datetime import UTC, datetime

import pytest
from kombu.exceptions import OperationalError
from redis import RedisError
from sqlalchemy import insert

from pipeline.engine.metrics import queue_depths
from pipeline.engine.traces import AiCall
from pipeline.flows.documents.states import PageStatus
from pipeline.providers import gates, queue_control
from pipeline.storage.context import Context
from tasks import queues, watchdog
from tasks.documents.canvas import TASKS
from tasks.maintenance import launch_all
from tests.support.documents import insert_document
from tests.support.redis_server import RedisServer

QUEUE = "vision.p"
PROVIDERS = {"p": {"base_url": "http://127.0.0.1:1/v1", "model": "m", "breaker_fail_max": 1}}


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PROVIDERS": json.dumps(PROVIDERS)}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What everybody was told, one entry each time."""
    found: list[list[str]] = []
    monkeypatch.setattr(watchdog, "announce_gates", lambda _, queues: found.append(list(queues)))
    return found


def _woken(context: Context) -> int:
    return queue_depths(context.redis, ["maintenance"])["maintenance"]


def test_a_tick_opens_what_the_calls_say_and_tells_of_all_that_is_closed(
    context: Context, told: list[list[str]]
) -> None:
    row = {
        "flow": "documents",
        "scope_id": "d",
        "unit": "1",
        "capability": "vision",
        "operation": "o",
        "provider": "p",
        "queue": QUEUE,
        "model": "m",
        "status": "transient",
        "created_at": datetime.now(UTC),
    }
    context.db.run(lambda session: session.execute(insert(AiCall), [row]))
    assert watchdog.watch() == 1
    assert told == [[QUEUE]]
    assert gates.breaker(context, "p:vision").look().state == "open"
    assert watchdog.watch() == 0, "another beat's tick"
    context.redis.delete(*context.redis.scan_iter("*tick:watchdog*"))
    assert watchdog.watch() == 0, "nothing changed"
    assert told == [[QUEUE]] * 2, "a worker may have missed it"


def test_what_was_not_sent_to_a_closed_gate_is_sent_as_soon_as_it_opens(context: Context) -> None:
    queue_control.pause(context, QUEUE, None)
    assert _woken(context) == 0, "it stays closed"
    document_id = insert_document(context, pages=[PageStatus.PENDING] * 2, provider="p")
    assert TASKS.launch(document_id) == 0
    queue_control.resume(context, QUEUE)
    assert _woken(context) == 1
    assert launch_all() == 2
    assert queue_depths(context.redis, [QUEUE])[QUEUE] == 2


def test_when_closed_queues_flow_again_is_in_one_place(context: Context) -> None:
    before = context.db.now()
    queue_control.pause(context, QUEUE, 600)
    (at,) = queues.resume_at().values()
    assert at is not None
    assert 590 < (at - before).total_seconds() < 610
    assert context.redis.hget("penstock:queues:resume_at", QUEUE) == str(int(at.timestamp() * 1000))
    queue_control.pause(context, QUEUE, None)
    assert queues.resume_at() == {QUEUE: None}
    context.redis.delete("penstock:queues:resume_at")
    watchdog.watch()
    assert queues.resume_at() == {QUEUE: None}, "the watchdog says it again"
    queue_control.resume(context, QUEUE)
    assert queues.resume_at() == {}
    queue_control.open_breaker(context, "p:vision", 300, "by hand")
    assert list(queues.resume_at()) == [QUEUE]


def test_a_queue_flows_or_is_closed_by_what_the_view_says(context: Context) -> None:
    gate = gates.gate(context, QUEUE)
    assert (queues.queue(QUEUE).gate, queues.queue(QUEUE).closed_by) == ("flowing", "")
    queues.change_setting(f"queue.{QUEUE}.limits", "1/min")
    assert gate.admit("a").granted
    assert gate.stamp("a").granted
    full = queues.queue(QUEUE)
    assert (full.gate, full.closed_by, full.reason, full.resumes_in_s) == ("closed", "limits", "1/min used up", None)
    queues.open_breaker("p:vision", 300, "daily quota")
    assert (queues.queue(QUEUE).closed_by, queues.queue(QUEUE).reason) == ("breaker", "daily quota")


def test_a_pause_of_a_queue_that_is_not_there_any_more_keeps_nobody_from_being_told(context: Context) -> None:
    watchdog.announce_gates(context, ["vision.removed"])
    assert _woken(context) == 0
    watchdog.announce_gates(context, ["vision.removed", QUEUE])
    assert _woken(context) == 1


@pytest.mark.parametrize(("seconds", "woken"), [(30, 1), (600, 0)])
def test_what_waits_for_a_breaker_is_sent_when_that_is_due_if_it_is_soon(
    context: Context, seconds: float, woken: int
) -> None:
    gates.sync(context)
    queue_control.open_breaker(context, "p:vision", seconds, "by hand")
    assert _woken(context) == woken


def test_a_broadcast_that_cannot_be_sent_ends_at_once_and_harms_nobody(
    context: Context, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates.sync(context)
    watchdog.announce_gates(context, [QUEUE])
    with monkeypatch.context() as away:
        away.setattr(watchdog, "_broadcast", _fail)
        watchdog.announce_gates(context, [QUEUE])
    redis_server.kill()
    with pytest.raises((OperationalError, RedisError)):
        watchdog._broadcast([QUEUE])


def _fail(_: object) -> None:
    raise OperationalError("the broker is away")

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
def announcements(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The announced queues, an entry for each announcement."""
    announced: list[list[str]] = []
    monkeypatch.setattr(watchdog, "announce_gates", lambda _, queues: announced.append(list(queues)))
    return announced


def _wake_ups(context: Context) -> int:
    return queue_depths(context.redis, ["maintenance"])["maintenance"]


def test_a_tick_opens_failing_breakers_and_announces_all_closed_queues(
    context: Context, announcements: list[list[str]]
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
    assert announcements == [[QUEUE]]
    assert gates.breaker(context, "p:vision").inspect().state == "open"
    assert watchdog.watch() == 0, "another beat has already run this tick"
    context.redis.delete(*context.redis.scan_iter("*tick:watchdog*"))
    assert watchdog.watch() == 0, "no breaker has changed"
    assert announcements == [[QUEUE]] * 2, "the watchdog repeats it for workers that missed it"


def test_withheld_work_is_sent_when_its_gate_opens(context: Context) -> None:
    queue_control.pause(context, QUEUE, None)
    assert _wake_ups(context) == 0, "a pause sends no work"
    document_id = insert_document(context, pages=[PageStatus.PENDING] * 2, provider="p")
    assert TASKS.launch(document_id) == 0
    queue_control.resume(context, QUEUE)
    assert _wake_ups(context) == 1
    assert launch_all() == 2
    assert queue_depths(context.redis, [QUEUE])[QUEUE] == 2


def test_the_resume_times_of_closed_queues_have_one_source(context: Context) -> None:
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
    assert queues.resume_at() == {QUEUE: None}, "the watchdog restores the time"
    queue_control.resume(context, QUEUE)
    assert queues.resume_at() == {}
    queue_control.open_breaker(context, "p:vision", 300, "by hand")
    assert list(queues.resume_at()) == [QUEUE]


def test_the_view_says_whether_a_queue_is_closed_and_why(context: Context) -> None:
    gate = gates.gate(context, QUEUE)
    assert (queues.queue(QUEUE).gate, queues.queue(QUEUE).closed_by) == ("flowing", "")
    queues.change_setting(f"queue.{QUEUE}.limits", "1/min")
    assert gate.admit("a").granted
    assert gate.stamp("a").granted
    full = queues.queue(QUEUE)
    assert (full.gate, full.closed_by, full.reason, full.resumes_in_s) == ("closed", "limits", "1/min used up", None)
    queues.open_breaker("p:vision", 300, "daily quota")
    assert (queues.queue(QUEUE).closed_by, queues.queue(QUEUE).reason) == ("breaker", "daily quota")


def test_a_pause_of_a_removed_queue_does_not_block_announcements(context: Context) -> None:
    watchdog.announce_gates(context, ["vision.removed"])
    assert _wake_ups(context) == 0
    watchdog.announce_gates(context, ["vision.removed", QUEUE])
    assert _wake_ups(context) == 1


@pytest.mark.parametrize(("seconds", "woken"), [(30, 1), (600, 0)])
def test_work_that_waits_for_a_breaker_is_sent_when_the_breaker_is_due_soon(
    context: Context, seconds: float, woken: int
) -> None:
    gates.sync(context)
    queue_control.open_breaker(context, "p:vision", seconds, "by hand")
    assert _wake_ups(context) == woken


def test_a_broadcast_that_cannot_be_sent_ends_at_once_without_an_error(
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

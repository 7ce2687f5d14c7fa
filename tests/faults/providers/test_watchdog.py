"""The watchdog over a whole fleet: it pauses and resumes workers without calls of their own at once."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import insert

from pipeline.engine.traces import AiCall
from pipeline.providers import gates
from pipeline.storage.context import Context
from tasks import queues
from tasks.app import app
from tests.faults.flow import SQLITE, Flow, settings
from tests.support.stack import Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults
QUEUE, BREAKER = "vision.test", "test:vision"
PAUSED, RESUMED = "queue.paused", "queue.resumed"
BOTH = ("ai-1", "ai-2")


def _wait_until_both_log(stack: Stack, text: str, times: int) -> None:
    wait_until(
        lambda: all(stack[name].says(text) == times for name in BOTH),
        90,
        f"both log {text} {times} times",
        last=lambda: [stack[name].says(text) for name in BOTH],
    )


def _inspected(command: str) -> list[set[str]]:
    """Return the queues of each worker's answer to `celery -A tasks inspect`."""
    answers = app.control.broadcast(command, reply=True, limit=len(BOTH), timeout=30) or []
    named = [queues for answer in answers for queues in answer.values()]
    return [set(names) if isinstance(names, dict) else {queue["name"] for queue in names} for names in named]


@pytest.mark.rotating
@SQLITE
@settings(WATCHDOG_INTERVAL_S="1", PROVIDERS__TEST__BREAKER_FAIL_MAX="3", PROVIDERS__TEST__BREAKER_COOL_DOWN_S="8")
def test_idle_workers_pause_and_resume_for_any_closer_of_the_gate(
    stack: Stack, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.start(*BOTH)
    wait_until(lambda: all(stack[name].says(" ready.") for name in BOTH), 90, "both are ready")
    queues.pause(QUEUE, reason="maintenance")
    _wait_until_both_log(stack, PAUSED, 1)
    queues.resume(QUEUE)
    _wait_until_both_log(stack, RESUMED, 1)

    queues.pause(QUEUE)
    _wait_until_both_log(stack, PAUSED, 2)
    with monkeypatch.context() as lost:
        lost.setattr(Context, "gates_changed", lambda *_: None)
        queues.resume(QUEUE)
    _wait_until_both_log(stack, RESUMED, 2)

    # Calls on record of workers that have ended. Only beat's watchdog reads them.
    row = {
        "flow": "documents",
        "scope_id": "d",
        "unit": "1",
        "capability": "vision",
        "operation": "o",
        "provider": "test",
        "queue": QUEUE,
        "model": "m",
        "status": "transient",
        "created_at": datetime.now(UTC),
    }
    flow.context.db.run(lambda session: session.execute(insert(AiCall), [row] * 3))
    stack.start("beat-1")
    _wait_until_both_log(stack, PAUSED, 3)
    assert gates.breaker(flow.context, BREAKER).inspect().reason == "3 failures in a row on record"
    assert _inspected("active_queues") == [{"maintenance"}] * 2, "no worker consumes the queue"
    assert _inspected("gates") == [{QUEUE}] * 2
    _wait_until_both_log(stack, RESUMED, 3)
    assert _inspected("active_queues") == [{"maintenance", QUEUE}] * 2
    assert not flow.provider.records, "no call was made"

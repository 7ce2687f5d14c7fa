"""Beat's watchdog, and the broadcast to all workers and flows that gates may have opened or closed."""

import math
from collections.abc import Collection

import structlog
from kombu.exceptions import OperationalError
from redis import RedisError

from pipeline.engine.isolation import isolated
from pipeline.engine.wakeups import plan_wakeup
from pipeline.process import get_context
from pipeline.providers import call_totals, gates, resume_at, watchdog
from pipeline.storage.context import Context
from tasks.app import app
from tasks.gates import LOOK_AT_GATES
from tasks.maintenance import launch_all, take_tick

log = structlog.get_logger(__name__)


@app.task(name="maintenance.watchdog", ignore_result=True)
def watch() -> int:
    """Open and close breakers by the calls on record, and end pauses that are over; return the number of changed
    breakers and reopened queues. If another process took the tick, only syncs the gates and returns 0.

    Also announces every closed gate, because workers may have missed it or started since, and advances the totals of
    calls.
    """
    context = get_context()
    gates.sync(context)
    if not take_tick(context, "watchdog", context.settings.watchdog_interval_s):
        return 0
    with isolated("calls.not_totalled"):
        call_totals.advance(context)
    breakers = watchdog.check_calls(context)
    queues = watchdog.end_expired(context)
    concerned = {*queues, *(queue for name in breakers for queue in context.gates.closed_by(name))}
    if concerned := concerned.union(watchdog.closed(context)):
        announce_gates(context, sorted(concerned))
    return len(breakers) + len(queues)


def announce_gates(context: Context, queues: Collection[str]) -> None:
    """Note in Redis when these queues reopen, make all workers check their gates now, and plan a launch of all flows
    for the time when the first gate opens.

    Logs errors of Redis and the broker instead of raising them: workers check closed gates once a second anyway, and
    the sweep launches due scopes.
    """
    try:
        # This first shows whether Redis is reachable.
        closed = {
            queue: gates.gate(context, queue).inspect().closed for queue in queues if queue in context.gates.queues
        }
        resume_at.note(context, {queue: state[1] if (state := closed.get(queue)) else None for queue in queues})
        _broadcast(queues)
    except (OperationalError, RedisError) as error:
        log.warning("gates.not_told", queues=sorted(queues), error=type(error).__name__)
        return
    # A queue of a removed provider, whose pause ended, is not in `closed`: no launch follows.
    opens_in_s = min((0.0 if state is None else state[1] for state in closed.values()), default=math.inf)
    try:
        if plan_wakeup(context.redis, "gates", opens_in_s):
            launch_all.apply_async(countdown=opens_in_s)
    except (OperationalError, RedisError) as error:
        log.warning("launch.postponed", queues=sorted(queues), error=type(error).__name__)


def _broadcast(queues: Collection[str]) -> None:
    """Make all workers check the gates of these queues. Unlike `app.control.broadcast`, raises an error at once while
    the broker is unreachable."""
    mailbox = app.control.mailbox
    message = {
        "method": LOOK_AT_GATES,
        "arguments": {"queues": sorted(queues)},
        "destination": None,
        "pattern": None,
        "matcher": None,
    }
    with app.producer_or_acquire() as producer:
        producer.publish(
            message,
            exchange=mailbox.exchange.name,
            declare=[mailbox.exchange],
            serializer="json",
            headers={"clock": app.clock.forward(), "expires": 0},
            retry=False,
        )

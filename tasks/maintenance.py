"""Beat's tasks: the sweep, catching up and cleaning up. Two beats do no harm: one of them takes each tick."""

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import structlog

from pipeline.engine import kept_answers, traces
from pipeline.engine.isolation import isolated
from pipeline.engine.leases import Leases
from pipeline.engine.presence import Presence, sweep_ended
from pipeline.engine.transaction import Tx
from pipeline.flows import flows
from pipeline.operations import retention
from pipeline.process import get_context
from pipeline.providers import gates
from pipeline.storage import installation
from pipeline.storage.context import Context
from tasks.app import app
from tasks.flow import all_flow_tasks

log = structlog.get_logger(__name__)


@app.task(name="maintenance.sweep", ignore_result=True)
def sweep() -> int:
    """Give back claims and slots of dead processes, and send missing messages; return the number of messages, 0 if
    another process took the tick.

    An error in one flow does not stop the others. A long sweep renews its tick, so that no second sweep starts. If it
    does not renew it for as long as a worker may be silent, it counts as dead: killed, or forgotten by Redis.
    """
    context = get_context()
    silent_s = context.settings.presence_ttl_s
    tick = Leases(context.redis, "tick:sweep", limit=1)
    name, began = uuid4().hex, time.monotonic()
    if not tick.acquire(name, silent_s):
        return 0
    try:
        launched = _sweep(context, lambda: tick.acquire(name, silent_s))
        sweep_ended(context.redis)
        return launched
    finally:
        # Keep the tick for the first 80 % of the interval.
        left_s = context.settings.sweep_interval_s * 0.8 - (time.monotonic() - began)
        tick.acquire(name, left_s) if left_s > 0 else tick.release(name)


def _sweep(context: Context, go_on: Callable[[], object]) -> int:
    # Three intervals, so that a late tick does not restart the count.
    within_s = max(60, 3 * context.settings.sweep_interval_s)
    admitted = gates.all_gates(context)
    busy, working = [], {worker for gate in admitted for worker in gate.workers()}
    for tasks in all_flow_tasks():
        rests = False  # also after an error
        with isolated("sweep.failed", flow=tasks.flow.name):
            rests = tasks.flow.is_at_rest(context)
        if not rests:
            busy.append(tasks)
            with isolated("sweep.failed", flow=tasks.flow.name):
                working |= tasks.flow.holders(context)
    absent = Presence(context.redis).missed_twice(working, within_s, context.settings.presence_interval_s)
    with isolated("sweep.failed", flow="gates"):
        for gate in admitted if absent else ():
            gate.finish_all(absent)
    launched = 0
    for tasks in busy:
        go_on()
        with isolated("sweep.failed", flow=tasks.flow.name):
            launched += tasks.sweep(absent, go_on)
    return launched


@app.task(name="maintenance.fail_unserved", ignore_result=True)
def fail_unserved() -> None:
    """Once a minute, fail work that waits for a removed provider. An error in one flow does not stop the others."""
    if not take_tick(get_context(), "unserved", 60):
        return
    for tasks in all_flow_tasks():
        with isolated("fail_unserved.failed", flow=tasks.flow.name):
            tasks.fail_unserved()


@app.task(name="maintenance.catch_up", ignore_result=True)
def catch_up() -> None:
    """Once a minute, do a part of the flows' deferred work, record late calls, and release money of ended work. An
    error in one flow does not stop the others."""
    context = get_context()
    if not take_tick(context, "catch-up", 60):
        return
    record_late_calls(context)
    for flow in flows():
        with isolated("catch_up.failed", flow=flow.name):
            flow.catch_up(context)
            flow.release_money(context)


def record_late_calls(context: Context) -> None:
    """Record calls that their workers could not record: the database was unreachable, or the worker was killed.

    Their answers stay on disk for the next worker that claims the unit.
    """
    charge = {flow.name: flow.charge for flow in flows()}
    late = list(kept_answers.late(context.settings.answer_dir))
    if late and not installation.belong_together(context):
        return
    for answer in late:

        def record(tx: Tx, call: dict[str, Any] = answer.trace) -> None:
            if traces.record(tx, call):
                charge[call["flow"]](tx, call)

        with isolated("call.not_recorded", scope=answer.trace["scope_id"]):
            context.db.run(record)
            if answer.content is None:
                kept_answers.discard(answer.path)


@app.task(name="maintenance.launch", ignore_result=True)
def launch_all() -> int:
    """Send the missing messages of every flow after a gate has opened; return their number."""
    sent = 0
    for tasks in all_flow_tasks():
        with isolated("launch.failed", flow=tasks.flow.name):
            sent += tasks.launch_all()
    return sent


@app.task(name="maintenance.clean_up", ignore_result=True)
def clean_up() -> int:
    """Once an hour, remove orphaned files and expired rows; return their number. An error in one flow does not stop the
    others.

    Removes nothing if the data folder belongs to another database.
    """
    context = get_context()
    if not take_tick(context, "clean-up", 3600) or not installation.belong_together(context):
        return 0
    removed = 0
    for flow in flows():
        with isolated("clean_up.failed", flow=flow.name):
            count = flow.clean_up(context)
            removed += count
            if count:
                log.info("clean_up.removed", flow=flow.name, count=count)
    return removed + sum(removal.removed for removal in retention.prune(context))


def take_tick(context: Context, name: str, interval_s: float) -> bool:
    """Whether this process may do the periodic act `name` now: False if another process took its turn in the last 80 %
    of the interval."""
    return Leases(context.redis, f"tick:{name}", limit=1).acquire(uuid4().hex, interval_s * 0.8)

"""The music flow as Celery tasks: `chain(metadata, embed, save)` for each batch.

Messages carry ids only and are nudges: each task looks at the row and does what is to be done, or nothing.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from celery import Signature, chain
from celery.result import denied_join_result
from kombu.exceptions import OperationalError
from redis import RedisError

from pipeline.engine import deliveries, events
from pipeline.engine.wakeups import plan_wakeup
from pipeline.flows.music import plan as launching
from pipeline.flows.music import queries, recovery
from pipeline.flows.music.plan import BatchLaunch
from pipeline.flows.music.routes import CONTROL, queue_of
from pipeline.flows.music.states import Mode, Step
from pipeline.flows.music.work import enqueue as enqueuing
from pipeline.flows.music.work import sync as run_sync
from pipeline.flows.music.work.batch import Settled
from pipeline.flows.music.work.step import StepWork
from pipeline.providers import gates
from pipeline.settings import Settings
from pipeline.storage.context import get_context
from tasks.app import app
from tasks.documents.canvas import owner
from tasks.presence import holder_of

log = structlog.get_logger(__name__)
FLOW = "music"


def launch(run_id: str) -> None:
    """Send whatever the run's rows say is to be done; nothing if nothing is. The only way work begins.

    A broker that is away costs time, not work: the sweeper launches what nobody did.
    """
    context = get_context()
    if not context.online:
        return
    plan = launching.plan(context, run_id)
    try:
        if plan.sync:
            sync_library.apply_async((run_id,))
        if plan.enqueue:
            enqueue.apply_async((run_id,))
        # Denied: else the client subscribes to a result that nobody reads, and tries for 20 s if Redis is away.
        with denied_join_result():
            for batch in plan.batches:
                canvas(context.settings, batch).apply_async()
    except OperationalError as error:
        log.warning("launch.postponed", run=run_id, error=type(error).__name__)
    if plan.ended:
        announce()


def canvas(settings: Settings, batch: BatchLaunch) -> Signature:
    """What is left of a batch's chain, from its step on. Source 002, section 2.E."""
    tasks = {Step.METADATA: metadata, Step.EMBED: embed, Step.SAVE: save}
    first = Step.METADATA if batch.step is Step.REPAIR else batch.step
    wanted = [step for step in tasks if batch.mode is not Mode.METADATA or step is not Step.EMBED]
    rest = [_step(tasks[step], settings, batch, step, first) for step in wanted[wanted.index(first) :]]
    return rest[0] if len(rest) == 1 else chain(*rest)


def _step(task: Any, settings: Settings, batch: BatchLaunch, step: Step, first: Step) -> Signature:
    queue = batch.queue if step is first else queue_of(settings, batch.mode, step)
    return task.si(batch.id, queue).set(queue=queue)


@app.task(name="music.sync", bind=True, ignore_result=True)
def sync_library(self: Any, run_id: str) -> None:
    """SYNCING → ENQUEUING."""
    wake_in(run_sync.sync_run(get_context(), run_id, owner(self)))
    _go_on(run_id)


@app.task(name="music.enqueue", ignore_result=True)
def enqueue(run_id: str) -> None:
    """ENQUEUING → RUNNING."""
    enqueuing.enqueue(get_context(), run_id)
    _go_on(run_id)


@app.task(name="music.metadata", bind=True)
def metadata(self: Any, batch_id: int, queue: str) -> None:
    """Pay for the metadata of a batch, once."""
    _perform(self, batch_id, queue, StepWork.metadata)


@app.task(name="music.embed", bind=True)
def embed(self: Any, batch_id: int, queue: str) -> None:
    """Pay for the vectors of a batch, once."""
    _perform(self, batch_id, queue, StepWork.embed)


@app.task(name="music.save", bind=True, ignore_result=True)
def save(self: Any, batch_id: int, queue: str) -> None:
    """PROCESSING → COMPLETED, the batch and its songs."""
    _perform(self, batch_id, queue, StepWork.save)


@app.task(name="music.wake", ignore_result=True)
def wake() -> None:
    """Launch what has waited long enough, and see to the next wake-up."""
    tend()
    wake_in(recovery.next_wait_s(get_context()))


def _perform(task: Any, batch_id: int, queue: str, step: Callable[[StepWork], Settled]) -> None:
    with deliveries.first(owner(task).request_id) as is_first:
        if is_first:
            _perform_once(task, batch_id, queue, step)
        else:
            task.request.chain = None


def _perform_once(task: Any, batch_id: int, queue: str, step: Callable[[StepWork], Settled]) -> None:
    context = get_context()
    passage = gates.passage(context, queue, holder_of(task.request.id))
    with StepWork(context, batch_id, owner(task), passage) as work:
        settled = step(work)
        unit = work.unit
    if not settled.go_on:
        # The chain ends here: what follows is launched from the row, when there is something to follow.
        task.request.chain = None
    if unit is None:
        return
    if passage is not None:
        _reflect_breakers()
    wake_in(settled.retry_in_s)
    if not settled.go_on:
        _go_on(unit.run_id)


def _go_on(run_id: str) -> None:
    launch(run_id)
    announce()


def tend() -> int:
    """Launch the active run; how many were launched: 1 or 0."""
    _reflect_breakers()
    run_id = recovery.active_run(get_context())
    if run_id is None:
        return 0
    launch(run_id)
    return 1


def _reflect_breakers() -> None:
    # Where Redis is away nobody knows; what was paid for is stored, and the chain must go on.
    with suppress(RedisError):
        recovery.reflect_breakers(get_context())


def wake_in(wait_s: float | None) -> None:
    """See to it that the flow is woken in `wait_s` seconds."""
    try:
        if wait_s is not None and plan_wakeup(get_context().redis, FLOW, wait_s):
            wake.apply_async(countdown=max(0.0, wait_s) + 0.05, queue=CONTROL)
    except (RedisError, OperationalError) as error:
        # The sweeper finds what is due.
        log.warning("wakeup.postponed", error=type(error).__name__)


def announce() -> None:
    """Publish how the pipeline stands."""
    context = get_context()
    run = queries.last_run(context)
    if context.online and run is not None:
        events.publish(context.redis, FLOW, "run", run=run.id, status=run.status.value, outcome=run.outcome or "")

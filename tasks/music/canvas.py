"""The music flow as Celery tasks: `chain(metadata, embed, save)` for each batch.

Messages are nudges and carry only ids: each task reads the row and does the work that is due, if any.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from celery import Signature, chain

from pipeline.engine.launch import Place, Wanted
from pipeline.engine.settled import Settled
from pipeline.flows.music import plan, queries, recovery
from pipeline.flows.music.flow import FLOW
from pipeline.flows.music.plan import BatchLaunch
from pipeline.flows.music.routes import CONTROL, queue_of
from pipeline.flows.music.states import Mode, Step
from pipeline.flows.music.work import selection, sync
from pipeline.flows.music.work.batch import BATCH_WORK
from pipeline.flows.music.work.step import StepWork
from pipeline.flows.music.work.sync import SYNC_WORK
from pipeline.process import get_context
from pipeline.providers import gates
from pipeline.settings import Settings
from pipeline.storage.context import Context
from tasks.app import app
from tasks.flow import ELSEWHERE, Announcement, AtWork, FlowTasks, Messages, at_work, expect, once, owner, summary
from tasks.presence import holder_of


def _messages(context: Context, run_ids: Sequence[str]) -> Iterator[Messages]:
    """Yield the messages that the runs' rows need: for their own stages, and for the remaining steps of their
    batches."""
    for run_id in run_ids:
        due = plan.plan(context, run_id)
        if due.sync or due.enqueue:
            stage = sync_library if due.sync else enqueue
            yield Messages(Wanted(_run_scope(run_id), CONTROL), partial(_stage, stage, run_id))
        for batch in due.batches:
            yield Messages(Wanted(_batch_scope(batch.id), batch.queue), partial(_chain, context.settings, batch))


def _stage(task: Any, run_id: str, _places: Sequence[int]) -> Signature:
    return task.si(run_id).set(queue=CONTROL)


def _run_scope(run_id: str) -> str:
    return f"music:run:{run_id}"


def _batch_scope(batch_id: int) -> str:
    return f"music:batch:{batch_id}"


def _announcement(context: Context, _: str) -> Announcement | None:
    """Return the state of the last run, whatever the scope: the pipeline has one run at a time."""
    run = queries.last_run(context)
    return ("run", {"run": run.id, "status": run.status.value, "outcome": run.outcome or ""}) if run else None


TASKS = FlowTasks(FLOW, announcement=_announcement, messages=_messages)


def _chain(settings: Settings, batch: BatchLaunch, _places: Sequence[int]) -> Signature:
    """The messages of a batch from its step on. Rules: docs/sources/music.md#steps."""
    tasks = {Step.METADATA: metadata, Step.EMBED: embed, Step.SAVE: save}
    first = Step.METADATA if batch.step is Step.REPAIR else batch.step
    wanted = [step for step in tasks if batch.mode is not Mode.METADATA or step is not Step.EMBED]
    queues = {step: queue_of(settings, batch.mode, step) for step in wanted} | {first: batch.queue}
    rest = [tasks[step].si(batch.id, queues[step]).set(queue=queues[step]) for step in wanted[wanted.index(first) :]]
    return rest[0] if len(rest) == 1 else chain(*rest)


def _run_at_work(task: Any, run_id: str) -> AbstractContextManager[AtWork | None]:
    """Hold the place of a run's own stages during the block; yield None if another live message has it. A sync may
    outlast its place: its claim protects it."""
    context = get_context()
    return at_work(task, Place(_run_scope(run_id), CONTROL), SYNC_WORK.lease_s(context.settings))


@app.task(name="music.sync", bind=True, ignore_result=True)
@once
def sync_library(self: Any, run_id: str) -> None:
    """Sync the library for a run: SYNCING → ENQUEUING."""
    with _run_at_work(self, run_id) as turn:
        if turn is not None:
            sync.sync_run(get_context(), run_id, owner(self))


@app.task(name="music.enqueue", bind=True, ignore_result=True)
@once
def enqueue(self: Any, run_id: str) -> None:
    """Put the run's songs into batches: ENQUEUING → RUNNING."""
    with _run_at_work(self, run_id) as turn:
        if turn is not None:
            selection.enqueue(get_context(), run_id)


@app.task(name="music.metadata", bind=True)
@once
def metadata(self: Any, batch_id: int, queue: str) -> str:
    """Request the metadata that the batch's songs still lack, and keep every valid answer in the batch's row."""
    return _perform(self, batch_id, queue, StepWork.metadata)


@app.task(name="music.embed", bind=True)
@once
def embed(self: Any, batch_id: int, queue: str) -> str:
    """Request the vectors of a batch's songs, and keep them in the batch's row."""
    return _perform(self, batch_id, queue, StepWork.embed)


@app.task(name="music.save", bind=True, ignore_result=True)
@once
def save(self: Any, batch_id: int, queue: str) -> str:
    """Write the results of a batch to its songs: PROCESSING → COMPLETED, the batch and its songs."""
    return _perform(self, batch_id, queue, StepWork.save)


def _perform(task: Any, batch_id: int, queue: str, step: Callable[[StepWork], Settled]) -> str:
    context = get_context()
    guarded = gates.guarded_call(context, queue, holder_of(task.request.id))
    place, ttl_s = Place(_batch_scope(batch_id), queue), BATCH_WORK.lease_s(context.settings)
    with StepWork(context, batch_id, owner(task), guarded) as work, at_work(task, place, ttl_s, guarded) as turn:
        settled = step(work) if turn else Settled()
    if not settled.requeue:
        # The chain ends here: a launch sends the next step from the row.
        task.request.chain = None
    if not turn:
        return ELSEWHERE
    if settled.requeue and task.request.chain:
        # Only now: if the next step is in the same queue, it is in the place that was just left.
        expect(Place(place.scope, task.request.chain[-1]["options"]["queue"]))
    if guarded is not None:
        recovery.reflect_breakers(context)
    return summary(settled, "batch")

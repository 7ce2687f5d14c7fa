"""The screenshots flow as Celery tasks: `chain(capture, batch)` for the screens, and for each batch
`chain(begin, analyse_shards, expand, merge_nodes)`. `analyse_shards` replaces itself by `chord(analyse × shards,
merge_shards)`, `expand` by a copy in the queue that is open then, `merge_nodes` by `group(merge_node × places)`.

Messages are nudges and carry only ids: each task reads the row and does the work that is due, if any. A launch from the
rows continues a broken chain.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Signature, chord, group

from pipeline.engine.launch import Place, Wanted
from pipeline.engine.nouns import count
from pipeline.flows.screenshots import plan
from pipeline.flows.screenshots.flow import FLOW
from pipeline.flows.screenshots.frames import buffer, retention
from pipeline.flows.screenshots.live_settings import CAPTURE, CONTROL, CPU, screenshots_in_force
from pipeline.flows.screenshots.plan import Action, NextStep, routes
from pipeline.flows.screenshots.scopes import Scope, batch_ids, buffer_of, scope_of
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.work import analysis, embedding, merge
from pipeline.flows.screenshots.work import batch as work
from pipeline.flows.screenshots.work.capture import Captures
from pipeline.flows.screenshots.work.expansion import ExpandMessage
from pipeline.flows.screenshots.work.merge import MergeMessage
from pipeline.flows.screenshots.work.pictures import Pictures
from pipeline.flows.screenshots.work.shard import ShardMessage
from pipeline.process import get_context
from pipeline.providers import gates
from pipeline.storage.context import Context
from tasks.app import app
from tasks.flow import ELSEWHERE, FlowTasks, Messages, at_work, expect, once, owner, summary
from tasks.maintenance import take_tick
from tasks.presence import holder_of

CAPTURES, MERGES, VECTORS = (f"{FLOW.name}:{scope}" for scope in (Scope.CAPTURES, Scope.MERGES, Scope.VECTORS))
"""The scopes of the places of captures, merges and vectors."""


def _messages(context: Context, scopes: Sequence[str]) -> Iterator[Messages]:
    """Yield the messages that these scopes' rows need. First picks some of the batches that wait for their turn."""
    for source, flush in plan.buffers(context, scopes):
        yield Messages(Wanted(_buffer(source, flush=flush), CONTROL), partial(_batching, source, flush))
    if Scope.CAPTURES in scopes and context.settings.screenshots.capture_sources:
        yield Messages(Wanted(CAPTURES, CAPTURE), lambda _: capture.si().set(queue=CAPTURE), [batch.s()])
    ids = batch_ids(scopes)
    if Scope.BATCHES in scopes:
        ids += plan.take_turns(context)
    for step in plan.next_steps(context, ids):
        wanted = Wanted(_batch(step.batch_id), step.queue, step.places, step.priority)
        yield Messages(wanted, partial(_canvas, context, step), _tail(step))
    if Scope.MERGES in scopes and merge.waiting(context) and not gates.closed_because(context, routes(context).merge):
        yield Messages(Wanted(MERGES, CONTROL), lambda _: merge_nodes.si())
    if Scope.MERGE_LANES in scopes and (queue := routes(context).merge) != CONTROL:
        lanes = min(merge.waiting(context), screenshots_in_force(context).merge_workers)
        yield Messages(Wanted(MERGES, queue, lanes), partial(_merging, queue))
    if Scope.VECTORS in scopes and embedding.waiting(context):
        queue = routes(context).embed
        yield Messages(Wanted(VECTORS, queue), lambda _: embed.si(queue).set(queue=queue))


ON_SCREEN = Captures()
"""The captures of this process's display."""
PICTURES = Pictures()
"""The pictures that this process has prepared ahead."""
TASKS = FlowTasks(FLOW, messages=_messages)


def _buffer(source: str, *, flush: bool = False) -> str:
    """The scope of a source's buffer."""
    return f"{FLOW.name}:{buffer_of(source, flush=flush)}"


def _batching(source: str, flush: bool, _: Sequence[int]) -> Signature:
    return batch.si(source, flush)


def _batch(batch_id: int) -> str:
    """The scope of a batch's places."""
    return f"{FLOW.name}:{scope_of(batch_id)}"


def _canvas(context: Context, step: NextStep, numbers: Sequence[int]) -> Signature:
    """Build the messages of a batch for the places that lack one: the next step of its chain."""
    match step.action:
        case Action.BEGIN:
            return begin.si(step.batch_id)
        case Action.ANALYSE:
            lanes = [_analysing(context, step.batch_id, step.queue, number, step.priority) for number in numbers]
            return chord(group(lanes), merge_shards.si(step.batch_id))
        case Action.MERGE:
            return merge_shards.si(step.batch_id)
        case Action.EXPAND:
            return expand.si(step.batch_id, step.queue).set(queue=step.queue, priority=step.priority)


def _tail(step: NextStep) -> list[Signature]:
    """The steps of a batch's chain after the next one."""
    rest = [analyse_shards.si(step.batch_id), expand.si(step.batch_id), merge_nodes.si()]
    return rest[{Action.BEGIN: 0, Action.ANALYSE: 1, Action.MERGE: 1, Action.EXPAND: 2}[step.action] :]


def _merging(queue: str, numbers: Sequence[int]) -> Signature:
    return group(merge_node.si(queue, number).set(queue=queue) for number in numbers)


@app.task(name="screenshots.tick", ignore_result=True)
def tick() -> None:
    """Beat's task: ask a worker with a display for captures, once in each interval, however many beats run."""
    context = get_context()
    if take_tick(context, "capture", context.settings.screenshots.capture_interval_s):
        TASKS.launch(Scope.CAPTURES)


@app.task(bind=True, name="screenshots.capture", ignore_result=True)
@once
def capture(self: Any) -> list[str]:
    """Capture the screens and windows that the settings name; return the sources with enough frames for a batch.
    Without any, end the chain."""
    context = get_context()
    with at_work(self, Place(CAPTURES, CAPTURE)) as place:
        intakes = ON_SCREEN.take(context, owner(self).worker_id) if place is not None else []
    ready = sorted({source for source, frame in intakes if frame.ready})
    expect(*(Place(_buffer(source), CONTROL) for source in ready))
    if not ready:
        self.request.chain = None
    return ready


@app.task(bind=True, name="screenshots.batch", ignore_result=True)
@once
def batch(self: Any, sources: str | list[str], flush: bool = False) -> str:
    """Put the frames of a source, or of the sources that `capture` returns, into batches: full ones, and the remaining
    frames once they have waited long enough, or if `flush`."""
    batched = 0
    for source in [sources] if isinstance(sources, str) else sources:
        with at_work(self, Place(_buffer(source, flush=flush), CONTROL)) as place:
            if place is not None and buffer.batch(get_context(), source, all_at_once=flush):
                batched += 1
    return count(batched, "source")


@app.task(bind=True, name="screenshots.begin", ignore_result=True)
@once
def begin(self: Any, batch_id: int) -> str:
    """Claim a batch, and plan its shards. If it is not due, end the chain."""
    context = get_context()
    with at_work(self, Place(_batch(batch_id), CONTROL)) as place:
        claimed = analysis.claim(context, batch_id) if place is not None else None
    if claimed is None:
        self.request.chain = None
    elif claimed.is_new:
        work.started(context, claimed.row)
    return count(claimed.due, "shard") if claimed else "nothing to do"


@app.task(bind=True, name="screenshots.analyse_shards", ignore_result=True)
@once
def analyse_shards(self: Any, batch_id: int) -> str:
    """Replace this message by the batch's shards, in the queue that is open now."""
    return TASKS.replace(self, scope_of(batch_id))


@app.task(bind=True, name="screenshots.analyse", ignore_result=True)
@once
def analyse(self: Any, batch_id: int, queue: str, number: int = 0) -> str:
    """Analyse one shard of the batch, and store the result."""
    context, urgency = get_context(), _priority(self)
    guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
    with (
        ShardMessage(context, batch_id, queue, owner(self), guarded, SoftTimeLimitExceeded, PICTURES) as message,
        at_work(self, Place(_batch(batch_id), queue, number, urgency), guarded=guarded) as place,
    ):
        if place is None:
            return ELSEWHERE
        settled = message.run()
        if settled.requeue:
            place.requeue(_analysing(context, batch_id, queue, number, urgency))
        elif settled.changed and self.request.chord:
            expect(Place(_batch(batch_id), CONTROL))
    if queue != CPU:
        PICTURES.make_ahead(context)
    return summary(settled, "shard")


def _analysing(context: Context, batch_id: int, queue: str, number: int, urgency: int) -> Signature:
    signature = analyse.si(batch_id, queue, number).set(queue=queue, priority=urgency)
    if queue == CPU:
        # Threads have no such limits: there, calls have time-outs.
        settings = context.settings
        limit_s = settings.documents.page_timeout_s * settings.screenshots.shard_size
        signature.set(soft_time_limit=limit_s, time_limit=limit_s + 30)
    return signature


def _priority(task: Any) -> int:
    """Return the priority of a task's message; without one, that of urgent work."""
    return (task.request.delivery_info or {}).get("priority") or plan.URGENT


@app.task(bind=True, name="screenshots.merge_shards", ignore_result=True)
@once
def merge_shards(self: Any, batch_id: int) -> str:
    """Merge the results of the shards after all their messages; or let the batch wait, or fail it."""
    context = get_context()
    with at_work(self, Place(_batch(batch_id), CONTROL)) as place:
        if place is None:
            return ELSEWHERE
        settled = analysis.settle(context, batch_id)
        if settled.done:
            expect(Place(_batch(batch_id), CONTROL))
    if not settled.done:
        self.request.chain = None
    if settled.status in {WorkStatus.FAILED, WorkStatus.FAILED_PERMANENT}:
        work.finished(context, batch_id)
    return summary(settled, "batch")


@app.task(bind=True, name="screenshots.expand", ignore_result=True)
@once
def expand(self: Any, batch_id: int, queue: str = "") -> str:
    """Make nodes of a batch's segments, with the text model or unchanged.

    Without a `queue`, replaces its message by one in the queue that is open now.
    """
    context, urgency = get_context(), _priority(self)
    if not queue and routes(context).expand != CONTROL:
        with at_work(self, Place(_batch(batch_id), CONTROL)) as place:
            pass
        return ELSEWHERE if place is None else TASKS.replace(self, scope_of(batch_id))
    queue = queue or CONTROL
    guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
    with (
        ExpandMessage(context, batch_id, queue, owner(self), guarded) as message,
        at_work(self, Place(_batch(batch_id), queue, priority=urgency), guarded=guarded) as place,
    ):
        if place is None:
            return ELSEWHERE
        settled = message.run()
        if settled.requeue:
            place.requeue(expand.si(batch_id, queue).set(queue=queue, priority=urgency))
    if settled.status is not None and not settled.requeue:
        work.finished(context, batch_id)
    if settled.done and not screenshots_in_force(context).retention_days:
        retention.expire(context)
    if not settled.done:
        self.request.chain = None
    return summary(settled, "batch")


@app.task(bind=True, name="screenshots.merge_nodes", ignore_result=True)
@once
def merge_nodes(self: Any, turn: int = 0) -> str:
    """Settle nodes without merge candidates, and launch the merges of the others."""
    context = get_context()
    by_rules = routes(context).merge == CONTROL
    with (
        MergeMessage(context, CONTROL, owner(self), None) as message,
        at_work(self, Place(MERGES, CONTROL)) as place,
    ):
        if place is None:
            return ELSEWHERE
        settled = message.run(alone=not by_rules, turn=turn)
        if by_rules and settled.done and merge.waiting(context):
            place.requeue(merge_nodes.si(turn + settled.done))
    return f"{summary(settled, 'node')}; {TASKS.replace(self, Scope.MERGE_LANES)}"


@app.task(bind=True, name="screenshots.merge_node", ignore_result=True)
@once
def merge_node(self: Any, queue: str, number: int = 0, turn: int | None = None) -> str:
    """Merge one node into another, and queue up again if more wait. Even turns take the oldest node, odd turns the
    newest."""
    context, turn = get_context(), number if turn is None else turn
    guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
    with (
        MergeMessage(context, queue, owner(self), guarded) as message,
        at_work(self, Place(MERGES, queue, number), guarded=guarded) as place,
    ):
        if place is None:
            return ELSEWHERE
        settled = message.run(turn=turn)
        if settled.done and merge.waiting(context):
            place.requeue(merge_node.si(queue, number, turn + 1).set(queue=queue))
    return summary(settled, "node")


@app.task(bind=True, name="screenshots.embed", ignore_result=True)
@once
def embed(self: Any, queue: str, portion: int = embedding.PORTION) -> str:
    """Make the vectors of some nodes, and queue up again if more wait."""
    context = get_context()
    guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
    with at_work(self, Place(VECTORS, queue), guarded=guarded) as place:
        if place is None:
            return ELSEWHERE
        settled = embedding.embed(context, owner(self), guarded, portion)
        if settled.requeue:
            place.requeue(embed.si(queue, settled.size).set(queue=queue))
    return summary(settled, "node")

"""The screenshots flow as Celery tasks. A batch's canvas:
`chain(begin ⇒ chord(analyse × shards, merge_shards), expand, merge_nodes ⇒ group(merge_node × places))`.

Messages carry ids only and are nudges: each task looks at the row and does what is to be done, or nothing.
"""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Signature, chain, chord, group

from pipeline.flows.screenshots import FLOW, events, plan
from pipeline.flows.screenshots.frames import retention
from pipeline.flows.screenshots.live_settings import (
    CONTROL,
    CPU,
    SCREENSHOT_TEXT,
    SCREENSHOT_VISION,
    screenshots_in_force,
)
from pipeline.flows.screenshots.plan import BatchLaunch, routes
from pipeline.flows.screenshots.states import Step, WorkStatus
from pipeline.flows.screenshots.work import analysis, embedding, merge
from pipeline.flows.screenshots.work.expansion import ExpandMessage
from pipeline.flows.screenshots.work.merge import MergeMessage
from pipeline.flows.screenshots.work.pictures import Pictures
from pipeline.flows.screenshots.work.shard import ShardMessage
from pipeline.providers import gates
from pipeline.storage.context import Context, get_context
from tasks.app import app
from tasks.flow import FlowTasks, once, owner, take_place_again
from tasks.presence import holder_of

URGENT, FILLER = 0, 3
"""Priorities of messages in Redis: steps of three, the lowest number first."""
LANE_TTL_S = 60.0
"""How long a message that merges or embeds counts as at work, at least."""


def _signatures(context: Context, scope: str) -> Iterator[Signature]:
    """What is left of batches' canvases; for merges and vectors a message where some wait and it may do something."""
    if scope == plan.Scope.BATCHES:
        yield from map(canvas, plan.plan(context))
    elif scope == plan.Scope.MERGES:
        if merge.waiting(context) and not gates.closed_because(context, routes(context).merge):
            yield merge_nodes.si()
    elif embedding.waiting(context) and not gates.closed_because(context, queue := routes(context).embed):
        ticket = uuid4().hex
        if plan.embed_place(context).acquire(ticket, LANE_TTL_S):
            yield embed.si(queue).set(queue=queue, task_id=ticket)


PICTURES = Pictures()
"""Those that this process has made ahead."""
TASKS = FlowTasks(FLOW, _signatures)


def canvas(batch: BatchLaunch) -> Signature:
    """What is left of a batch's way, from its step on."""
    expanding = expand.si(batch.id, batch.expand).set(queue=batch.expand, priority=priority(batch.expand, batch.filler))
    rest = [expanding, merge_nodes.si()]
    return chain(begin.si(batch.id, batch.filler), *rest) if batch.step is Step.ANALYSE else chain(*rest)


@app.task(bind=True, name="screenshots.begin")
def begin(self: Any, batch_id: int, filler: bool = False) -> None:
    """Claim a batch, and replace itself with its shards and what merges their results."""
    context = get_context()
    found = analysis.claim(context, batch_id)
    if found is None:
        self.request.chain = None
        return
    if found.is_new:
        events.started(context, found.row)
    if not found.due:
        _merge_shards(self, batch_id)
        return
    queue = routes(context).analyse
    urgency = priority(queue, filler)
    header = [_analysing(context, batch_id, queue, urgency) for _ in range(found.due)]
    raise self.replace(chord(group(header), merge_shards.si(batch_id)))


@app.task(bind=True, name="screenshots.analyse", ignore_result=True)
@once
def analyse(self: Any, batch_id: int, queue: str) -> None:
    """Have one shard of the batch looked at, and store what was seen."""
    context = get_context()
    guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
    with ShardMessage(context, batch_id, queue, owner(self), guarded, SoftTimeLimitExceeded, PICTURES) as message:
        settled = message.run()
    if queue != CPU:
        PICTURES.make_ahead(context)
    if settled.again:
        take_place_again(self.request, _analysing(context, batch_id, queue, _own(self)))


def _analysing(context: Context, batch_id: int, queue: str, urgency: int) -> Signature:
    signature = analyse.si(batch_id, queue).set(queue=queue, priority=urgency)
    if queue == CPU:
        # Threads have no such limit: there, calls have.
        settings = context.settings
        limit_s = settings.documents.page_timeout_s * settings.screenshots.shard_size
        signature.set(soft_time_limit=limit_s, time_limit=limit_s + 30)
    return signature


def priority(queue: str, filler: bool) -> int:
    """How urgent a message is. Only in the flow's own queues one lets others pass: elsewhere it would never have a turn
    while another flow is busy."""
    return FILLER if filler and queue in {SCREENSHOT_VISION, SCREENSHOT_TEXT} else URGENT


def _own(task: Any) -> int:
    """How urgent the message is that a task works on."""
    return (task.request.delivery_info or {}).get("priority") or URGENT


@app.task(bind=True, name="screenshots.merge_shards")
def merge_shards(self: Any, batch_id: int) -> None:
    """All messages for the shards have ended: what they found is merged, or the batch waits, or is given up."""
    _merge_shards(self, batch_id)


def _merge_shards(self: Any, batch_id: int) -> None:
    context = get_context()
    settled = analysis.settle(context, batch_id)
    if settled.status is not WorkStatus.PENDING:
        self.request.chain = None
    if settled.status in {WorkStatus.FAILED, WorkStatus.FAILED_PERMANENT}:
        events.finished(context, batch_id)
    TASKS.wake_in(settled.retry_in_s)
    TASKS.launch(plan.Scope.BATCHES)


@app.task(bind=True, name="screenshots.expand")
@once
def expand(self: Any, batch_id: int, queue: str) -> None:
    """Make nodes of what was seen: by the text model, or as it stands."""
    context = get_context()
    guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
    with ExpandMessage(context, batch_id, queue, owner(self), guarded) as message:
        settled = message.run()
    if settled.again:
        # The rest of the chain is launched from rows when it is done.
        expand.si(batch_id, queue).set(queue=queue, priority=_own(self)).apply_async()
    if not settled.done:
        self.request.chain = None
    if settled.status is not None and not settled.again:
        events.finished(context, batch_id)
    if settled.done:
        if not self.request.chain:
            merge_nodes.si().apply_async()
        if not screenshots_in_force(context).retention_days:
            retention.expire(context)
        TASKS.launch(plan.Scope.VECTORS)
    TASKS.wake_in(settled.retry_in_s)
    TASKS.launch(plan.Scope.BATCHES)


@app.task(bind=True, name="screenshots.merge_nodes", ignore_result=True)
@once
def merge_nodes(self: Any) -> None:
    """Settle nodes that have nothing to be merged with, and send messages for the merges of the others."""
    context = get_context()
    queue = routes(context).merge
    with MergeMessage(context, CONTROL, owner(self), None) as message:
        settled = message.run(alone=queue != CONTROL)
    if settled.done:
        TASKS.launch(plan.Scope.VECTORS)
    TASKS.wake_in(settled.retry_in_s)
    workers = screenshots_in_force(context).merge_workers
    lanes = [
        merge_node.si(queue).set(queue=queue, task_id=ticket)
        for ticket in (uuid4().hex for _ in range(min(merge.waiting(context), workers)))
        if plan.merge_places(context).acquire(ticket, LANE_TTL_S)
    ]
    if lanes:
        group(lanes).apply_async()


@app.task(bind=True, name="screenshots.merge_node", ignore_result=True)
@once
def merge_node(self: Any, queue: str, lane_id: str = "") -> None:
    """Merge one node into another, and queue up again if more wait.

    `lane_id` holds the place: the id of the lane's first message.
    """
    context, lane_id = get_context(), lane_id or self.request.id
    guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
    places = plan.merge_places(context)
    with MergeMessage(context, queue, owner(self), guarded) as message:
        if not places.acquire(lane_id, LANE_TTL_S):
            return  # an extra message: all places are taken
        settled = message.run()
    TASKS.wake_in(settled.retry_in_s)
    if settled.done:
        TASKS.launch(plan.Scope.VECTORS)
    if settled.done and merge.waiting(context):
        places.acquire(lane_id, LANE_TTL_S)
        take_place_again(self.request, merge_node.si(queue, lane_id).set(queue=queue))
    else:
        places.release(lane_id)


@app.task(bind=True, name="screenshots.embed", ignore_result=True)
@once
def embed(self: Any, queue: str, portion: int = embedding.PORTION, lane_id: str = "") -> None:
    """Make the vectors of some nodes, and queue up again if more wait. One such message at a time is enough.

    `lane_id` holds the place: the id of the lane's first message.
    """
    context, lane_id = get_context(), lane_id or self.request.id
    place = plan.embed_place(context)
    guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
    # Longer than the call: nobody else makes the same vectors meanwhile.
    calls = context.settings.providers.get(context.settings.screenshots.embeddings_provider)
    if not place.acquire(lane_id, LANE_TTL_S + (calls.timeout_s if calls else 0)):
        if guarded is not None:
            guarded.leave()
        return
    settled = embedding.embed(context, guarded, portion)
    TASKS.wake_in(settled.retry_in_s)
    if settled.again:
        place.acquire(lane_id, LANE_TTL_S)
        take_place_again(self.request, embed.si(queue, settled.size, lane_id).set(queue=queue))
    elif settled.retry_in_s:
        place.acquire(lane_id, settled.retry_in_s)  # nobody else takes it until then
    else:
        place.release(lane_id)

"""The knowledge flow as Celery tasks: `chain(read, embed_batches)` for each item, where `embed_batches` replaces itself
by `chord(embed × batches, write)`.

Messages are nudges and carry only ids: each task reads the row and does the work that is due, if any.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from celery import Signature, chain, chord, group

from pipeline.engine.launch import Place, Wanted
from pipeline.flows.knowledge import deletion, plan, queries
from pipeline.flows.knowledge.flow import FLOW
from pipeline.flows.knowledge.live_settings import CONTROL, CPU, IO, embeddings_queue
from pipeline.flows.knowledge.plan import DueStep, Step
from pipeline.flows.knowledge.queries import UnknownItem, place_of
from pipeline.flows.knowledge.work import batch, content, item, publication
from pipeline.process import get_context
from pipeline.providers import gates
from pipeline.settings import Settings
from pipeline.storage.context import Context
from tasks.app import app
from tasks.flow import ELSEWHERE, Announcement, FlowTasks, Messages, at_work, expect, once, owner, summary
from tasks.presence import holder_of


def _messages(context: Context, scopes: Sequence[str]) -> Iterator[Messages]:
    """Yield the messages that these scopes' rows need. Starts some items of the line first."""
    for due in plan.due_steps(context, scopes):
        yield Messages(Wanted(place_of(due.id), due.queue, due.places), partial(_canvas, context, due))


def _canvas(context: Context, due: DueStep, numbers: Sequence[int]) -> Signature:
    """Build the messages of an item for the places that lack one."""
    match due.step:
        case Step.READ:
            return chain(read.si(due.id), embed_batches.si(due.id))
        case Step.EMBED:
            lanes = [_embedding(context.settings, due.id, due.provider, number) for number in numbers]
            return chord(group(lanes), write.si(due.id))
        case Step.WRITE:
            return write.si(due.id)
        case Step.REMOVE:
            return remove.si(due.id)


def _announcement(context: Context, item_id: str) -> Announcement | None:
    try:
        view = queries.item(context, item_id)
    except UnknownItem:
        return None
    return "item", {
        "item": view.id,
        "base": view.base_id,
        "status": view.status.value,
        "progress": view.progress,
        "deleting": int(view.deleting),
    }


TASKS = FlowTasks(FLOW, announcement=_announcement, messages=_messages)


@app.task(bind=True, name="knowledge.read", ignore_result=True)
@once
def read(self: Any, item_id: str) -> str:
    """Read an item and split it into chunks: PENDING → PREPROCESSING → EMBEDDING."""
    context = get_context()
    with at_work(self, Place(place_of(item_id), IO), item.read_lease_s(context.settings)) as work:
        if work is None:
            return ELSEWHERE
        content.read(context, item_id, owner(self))
    return "read"


@app.task(bind=True, name="knowledge.embed_batches", ignore_result=True)
@once
def embed_batches(self: Any, item_id: str) -> str:
    """Replace this message by the item's batches, in the queue of their provider."""
    return TASKS.replace(self, item_id)


@app.task(bind=True, name="knowledge.embed", ignore_result=True)
@once
def embed(self: Any, item_id: str, provider: str, number: int) -> str:
    """Make the vectors of one batch, then queue up again if the item has more."""
    context, queue = get_context(), embeddings_queue(provider)
    guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
    with at_work(self, Place(place_of(item_id), queue, number), guarded=guarded) as work:
        if work is None:
            return ELSEWHERE
        settled = batch.embed(context, item_id, provider, owner(self), guarded)
        if settled.requeue:
            work.requeue(_embedding(context.settings, item_id, provider, number))
        elif settled.done and self.request.chord:
            expect(Place(place_of(item_id), CONTROL))
    return summary(settled, "batch")


def _embedding(settings: Settings, item_id: str, provider: str, number: int) -> Signature:
    queue = embeddings_queue(provider)
    signature = embed.si(item_id, provider, number).set(queue=queue)
    if queue == CPU:
        # Threads have no such limits: there, calls have time-outs.
        limit_s = item.call_lease_s(settings)
        signature.set(soft_time_limit=limit_s, time_limit=limit_s + 30)
    return signature


@app.task(bind=True, name="knowledge.write", ignore_result=True)
@once
def write(self: Any, item_id: str) -> str:
    """Publish an item's vectors after all batches: EMBEDDING → COMPLETED. If another step is due, launch that
    instead."""
    context = get_context()
    with at_work(self, Place(place_of(item_id), CONTROL), item.write_lease_s(context.settings)) as work:
        if work is None:
            return ELSEWHERE
        settled = publication.publish(context, item_id, owner(self))
    return summary(settled, "item")


@app.task(bind=True, name="knowledge.remove", ignore_result=True)
@once
def remove(self: Any, base_id: str) -> None:
    """Remove data of a base's deleted items, and the base itself if it is deleted; queue up again if more is left."""
    context = get_context()
    with at_work(self, Place(place_of(base_id), CONTROL)) as work:
        if work is not None and deletion.remove(context, base_id):
            work.requeue(remove.si(base_id))

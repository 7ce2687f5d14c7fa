"""The documents flow as Celery tasks: `chain(split, convert ⇒ chord(lanes, settle), merge)`.

Messages are nudges and carry only ids: each task looks at the row and does what is due, if anything.
"""

from collections.abc import Iterator
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Signature, chain, chord, group

from pipeline.flows.documents import FLOW, plan, queries
from pipeline.flows.documents.plan import CPU, Stage
from pipeline.flows.documents.queries import UnknownDocument
from pipeline.flows.documents.work.merge import merge_document
from pipeline.flows.documents.work.page_lane import PageLane
from pipeline.flows.documents.work.split import split_document
from pipeline.providers import gates
from pipeline.settings import Settings
from pipeline.storage.context import Context, get_context
from tasks.app import app
from tasks.flow import Announcement, FlowTasks, once, owner, take_place_again
from tasks.presence import holder_of

WAITING_LANE_TTL_S = 60
"""How long a lane counts as live while it waits in its queue."""


def _signatures(context: Context, document_id: str) -> Iterator[Signature]:
    """The rest of the document's canvas, from the stage that its row waits for."""
    stage = plan.next_stage(context, document_id)
    if stage is not None:
        rest = [split.si(document_id), convert.si(document_id), merge.si(document_id)][list(Stage).index(stage) :]
        yield rest[0] if len(rest) == 1 else chain(*rest)


def _announcement(context: Context, document_id: str) -> Announcement | None:
    try:
        view = queries.document(context, document_id)
    except UnknownDocument:
        return None
    return "document", {
        "document": document_id, "status": view.status.name, "progress": view.progress,
        "pages": view.pages, "completed": view.completed_count, "failed": view.failed_count,
    }  # fmt: skip


TASKS = FlowTasks(FLOW, _signatures, _announcement)


@app.task(bind=True, name="documents.split")
@once
def split(self: Any, document_id: str) -> None:
    """PENDING → SPLITTING → PROCESSING."""
    if split_document(get_context(), document_id, owner(self)):
        TASKS.announce(document_id)


@app.task(bind=True, name="documents.convert")
def convert(self: Any, document_id: str) -> None:
    """Replaces itself with the document's lanes and what follows them."""
    context = get_context()
    header = [
        lane_signature(context.settings, document_id, queue)
        for queue, wanted in plan.lanes(context, document_id).items()
        for _ in range(wanted)
    ]
    if header:
        raise self.replace(chord(group(header), settle.si(document_id)))


@app.task(bind=True, name="documents.lane", ignore_result=True)
@once
def lane(self: Any, document_id: str, queue: str, batch: int = 1, lane_id: str = "") -> None:
    """One hop of a lane: convert pages for a while, then queue up again if there are more.

    `lane_id` holds the lane's lease: the id of its first message.
    """
    context, lane_id = get_context(), lane_id or self.request.id
    leases = plan.lane_leases(context, document_id, queue, plan.lane_limit(context.settings, queue))
    guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
    if not leases.acquire(lane_id, context.settings.documents.lease_s):
        # A message too many: all lanes of this document are taken.
        if guarded is not None:
            guarded.leave()
        return
    providers = plan.served_by(context, queue)
    work = PageLane(context, document_id, queue, providers, owner(self, lane_id), SoftTimeLimitExceeded, guarded)
    settled = work.run(plan.quantum_s(context.settings, queue), batch)
    if settled.changed:
        TASKS.announce(document_id)
    TASKS.wake_in(settled.retry_in_s)
    if settled.again:
        leases.acquire(lane_id, WAITING_LANE_TTL_S)
        take_place_again(self.request, lane_signature(context.settings, document_id, queue, settled.size, lane_id))
    else:
        leases.release(lane_id)


def lane_signature(settings: Settings, document_id: str, queue: str, batch: int = 1, lane_id: str = "") -> Signature:
    """A lane's first message, or the next one of `lane_id`."""
    signature = lane.si(document_id, queue, batch, lane_id).set(queue=queue)
    if queue == CPU:
        # Per hop, and no page begins after the quantum. Threads cannot be limited; there, calls have time-outs.
        limit_s = settings.documents.page_timeout_s + settings.documents.quantum_s
        signature.set(soft_time_limit=limit_s, time_limit=limit_s + 30)
    return signature


@app.task(name="documents.settle", ignore_result=True)
def settle(document_id: str) -> None:
    """All lanes have ended. If pages still wait for their next attempt, make sure that the flow wakes up for them."""
    TASKS.wake_in(plan.next_wait_s(get_context()))
    TASKS.announce(document_id)


@app.task(bind=True, name="documents.merge", ignore_result=True)
@once
def merge(self: Any, document_id: str) -> None:
    """READY_TO_MERGE → MERGING → COMPLETED."""
    if merge_document(get_context(), document_id, owner(self)):
        TASKS.announce(document_id)

"""The documents flow as Celery tasks: `chain(split, convert)`, where `convert` gives way to `chord(lanes, merge)`.

Messages are nudges and carry only ids: each task reads the row and does the work that is due, if any.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Signature, chain, chord, group

from pipeline.engine.isolation import isolated
from pipeline.engine.launch import Place, Wanted
from pipeline.engine.nouns import count
from pipeline.flows.documents import plan, queries
from pipeline.flows.documents.flow import FLOW
from pipeline.flows.documents.plan import CPU, Stage
from pipeline.flows.documents.queries import UnknownDocument
from pipeline.flows.documents.work import text_index
from pipeline.flows.documents.work.merge import merge_document
from pipeline.flows.documents.work.page_lane import PageLane
from pipeline.flows.documents.work.split import split_document
from pipeline.process import get_context
from pipeline.providers import gates
from pipeline.settings import Settings
from pipeline.storage.context import Context
from tasks.app import app
from tasks.flow import ELSEWHERE, Announcement, FlowTasks, Messages, at_work, expect, once, owner
from tasks.presence import holder_of

CONTROL = "control"
_STOPPING_S = 30.0
"""The margin of Celery's limits over the time-outs in the task itself, which fail only the page or document."""
_STAGE_QUEUES: Mapping[Stage, str] = {Stage.SPLIT: CPU, Stage.MERGE: CONTROL}


def _messages(context: Context, document_ids: Sequence[str]) -> Iterator[Messages]:
    """Yield the messages that each document needs from the stage for which its row waits."""
    for due in plan.stages(context, document_ids):
        if due.stage is Stage.CONVERT:
            yield from (_lanes(context.settings, due.document_id, *lanes) for lanes in due.lanes.items())
        else:
            yield _stage(context.settings, due.document_id, due.stage)


def _stage(settings: Settings, document_id: str, stage: Stage) -> Messages:
    def message() -> Signature:
        if stage is Stage.MERGE:
            return merge.si(document_id)
        limit_s = settings.documents.split_timeout_s + _STOPPING_S
        first = split.si(document_id).set(soft_time_limit=limit_s, time_limit=limit_s + _STOPPING_S)
        return chain(first, convert.si(document_id))

    return Messages(Wanted(_scope(document_id), _STAGE_QUEUES[stage]), lambda _: message())


def _lanes(settings: Settings, document_id: str, queue: str, lanes: int) -> Messages:
    def canvas(numbers: Sequence[int]) -> Signature:
        header = group(lane_signature(settings, document_id, queue, number) for number in numbers)
        return chord(header, merge.si(document_id))

    return Messages(Wanted(_scope(document_id), queue, lanes), canvas)


def _scope(document_id: str) -> str:
    return f"{FLOW.name}:{document_id}"


def _place(document_id: str, stage: Stage) -> Place:
    return Place(_scope(document_id), _STAGE_QUEUES[stage])


def _announcement(context: Context, document_id: str) -> Announcement | None:
    try:
        view = queries.document(context, document_id)
    except UnknownDocument:
        return "deleted", {"document": document_id}
    return "document", {
        "document": document_id,
        "status": view.status.name,
        "progress": view.progress,
        "pages": view.pages,
        "completed": view.completed_count,
        "failed": view.failed_count,
    }


TASKS = FlowTasks(FLOW, announcement=_announcement, messages=_messages)


@app.task(bind=True, name="documents.split", ignore_result=True)
@once
def split(self: Any, document_id: str) -> str:
    """Split a document into pages: PENDING → SPLITTING → PROCESSING."""
    with at_work(self, _place(document_id, Stage.SPLIT)) as work:
        if work is None:
            return ELSEWHERE
        if not split_document(get_context(), document_id, owner(self)):
            return "nothing due, or it failed"
        return "split"


@app.task(bind=True, name="documents.convert", ignore_result=True)
@once
def convert(self: Any, document_id: str) -> str:
    """Replace this message by the document's lanes, in the queues that are open now."""
    return TASKS.replace(self, document_id)


@app.task(bind=True, name="documents.lane", ignore_result=True)
@once
def lane(self: Any, document_id: str, queue: str, number: int, batch: int = 1) -> str:
    """Run one hop of a lane: convert pages for a quantum, then queue up again if the document has more."""
    context = get_context()
    guarded = gates.guarded_call(context, queue, holder_of(self.request.id))
    with at_work(self, Place(_scope(document_id), queue, number), guarded=guarded) as work:
        if work is None:
            return ELSEWHERE
        providers = plan.served_by(context, queue)
        hop = PageLane(context, document_id, queue, providers, owner(self), SoftTimeLimitExceeded, guarded)
        settled = hop.run(plan.quantum_s(context.settings, queue), batch)
        if settled.requeue:
            work.requeue(lane_signature(context.settings, document_id, queue, number, settled.size))
        elif hop.is_last:
            expect(_place(document_id, Stage.MERGE))
    failed = [f"{number} failed: {kind}" for kind, number in hop.failures.items()]
    return ", ".join([count(hop.converted, "page"), *failed])


def lane_signature(settings: Settings, document_id: str, queue: str, number: int, batch: int = 1) -> Signature:
    """Build the message of one of a document's lanes."""
    signature = lane.si(document_id, queue, number, batch).set(queue=queue)
    if queue == CPU:
        # For one hop; no page starts after the quantum. Threads have no such limits: there, calls have time-outs.
        limit_s = settings.documents.page_timeout_s + settings.documents.quantum_s + _STOPPING_S
        signature.set(soft_time_limit=limit_s, time_limit=limit_s + _STOPPING_S)
    return signature


@app.task(bind=True, name="documents.merge", ignore_result=True)
@once
def merge(self: Any, document_id: str) -> str:
    """Merge a document's pages after all lanes: READY_TO_MERGE → MERGING → COMPLETED. If another stage is due, launch
    that instead."""
    context = get_context()
    with at_work(self, _place(document_id, Stage.MERGE)) as work:
        if work is None:
            return ELSEWHERE
        merged = merge_document(context, document_id, owner(self))
        if merged:
            with isolated("document.not_indexed", document=document_id):
                text_index.index(context, document_id)
    return "merged" if merged else "nothing to merge"

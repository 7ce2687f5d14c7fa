"""The documents flow as Celery tasks: `chain(split, convert ⇒ chord(lanes, settle), merge)`.

Messages carry ids only and are nudges: each task looks at the row and does what is to be done, or nothing.
"""

from typing import Any
from uuid import uuid4

import structlog
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Signature, chain, chord, group
from celery.result import denied_join_result
from kombu.exceptions import OperationalError
from redis import RedisError

from pipeline.engine import deliveries, events
from pipeline.engine.claims import Owner
from pipeline.engine.lanes import run_lane
from pipeline.engine.wakeups import plan_wakeup
from pipeline.flows.documents import plan, queries, recovery
from pipeline.flows.documents.plan import Stage
from pipeline.flows.documents.routes import CPU, quantum_s
from pipeline.flows.documents.service import UnknownDocument
from pipeline.flows.documents.work import merge as merging
from pipeline.flows.documents.work import split as splitting
from pipeline.flows.documents.work.page_lane import PageWork
from pipeline.providers import gates
from pipeline.settings import Settings
from pipeline.storage.context import Context, get_context
from tasks.app import app
from tasks.presence import holder_of, identity

log = structlog.get_logger(__name__)
FLOW = "documents"
WAITING_LANE_TTL_S = 60
"""How long a lane that waits in its queue counts as live."""


def launch(document_id: str) -> None:
    """Send whatever the document's row says is to be done; nothing if nothing is. The only way work begins.

    A broker that is away costs time, not work: the sweeper launches what nobody did.
    """
    if not get_context().online:
        return
    stage = plan.plan(get_context(), document_id)
    if stage is not None:
        try:
            # Denied: else the client subscribes to a result that nobody reads, and tries for 20 s if Redis is away.
            with denied_join_result():
                canvas(document_id, stage).apply_async()
        except OperationalError as error:
            log.warning("launch.postponed", document=document_id, error=type(error).__name__)


def canvas(document_id: str, stage: Stage) -> Signature:
    """What is left of the flow, from `stage` on."""
    signatures = [split.si(document_id), convert.si(document_id), merge.si(document_id)]
    rest = signatures[list(Stage).index(stage) :]
    return rest[0] if len(rest) == 1 else chain(*rest)


@app.task(bind=True, name="documents.split")
def split(self: Any, document_id: str) -> None:
    """PENDING → SPLITTING → PROCESSING."""
    if splitting.split(get_context(), document_id, owner(self)):
        announce(document_id)


@app.task(bind=True, name="documents.convert")
def convert(self: Any, document_id: str) -> None:
    """Replace itself with the document's lanes and what follows them."""
    context = get_context()
    header = [
        lane_signature(context.settings, document_id, wanted.queue)
        for wanted in plan.lanes(context, document_id)
        for _ in range(wanted.wanted)
    ]
    if header:
        raise self.replace(chord(group(header), settle.si(document_id)))


@app.task(bind=True, name="documents.lane", ignore_result=True)
def lane(self: Any, document_id: str, queue: str, hop: str = "", batch: int = 1) -> None:
    """One hop of one lane: convert pages for a while, then queue up again if there are more."""
    with deliveries.first(owner(self, hop).request_id) as is_first:
        if is_first:
            _hop(self, document_id, queue, hop, batch)


def _hop(self: Any, document_id: str, queue: str, hop: str, batch: int) -> None:
    context = get_context()
    limit = plan.limit_of(context, queue)
    leases = plan.lane_leases(context, document_id, queue, limit)
    passage = gates.passage(context, queue, holder_of(self.request.id))
    if not leases.acquire(self.request.id, context.settings.documents.lease_s):
        # An extra ticket: all lanes of this document are taken.
        if passage is not None:
            passage.leave()
        return
    with PageWork(context, document_id, queue, owner(self, hop), SoftTimeLimitExceeded, passage) as work:
        work.begin()
        result = run_lane(work, quantum_s=quantum_s(context.settings, queue), batch=batch)
    if work.has_news:
        announce(document_id)
    wake_in(context, work.retry_in_s)
    if result.more:
        leases.acquire(self.request.id, WAITING_LANE_TTL_S)
        again = lane_signature(context.settings, document_id, queue, uuid4().hex[:8], result.batch)
        take_place_again(self.request, again)
    else:
        leases.release(self.request.id)


def take_place_again(request: Any, signature: Signature) -> None:
    """What `Task.replace` does for a part of a chord, without the exception that it raises: a lane does this often.

    The signature takes over the request's id and its part in the chord; the request has no part in it any more.
    """
    signature.freeze(request.id)
    signature.set(chord=request.chord, group_id=request.group, group_index=request.group_index, root_id=request.root_id)
    signature.apply_async()
    request.update(chord=None, chain=None, callbacks=None)


def lane_signature(settings: Settings, document_id: str, queue: str, hop: str = "", batch: int = 1) -> Signature:
    """One ticket for a lane."""
    signature = lane.si(document_id, queue, hop, batch).set(queue=queue)
    if queue == CPU:
        # Per hop; a page begins at the latest when the quantum ends. Threads have no such limit: there, calls have.
        limit_s = settings.documents.page_timeout_s + settings.documents.quantum_s
        signature.set(soft_time_limit=limit_s, time_limit=limit_s + 30)
    return signature


@app.task(name="documents.settle", ignore_result=True)
def settle(document_id: str) -> None:
    """All lanes have ended. If the document is not settled, pages wait for their next attempt: see to a wake-up."""
    context = get_context()
    wake_in(context, recovery.next_wait_s(context))
    announce(document_id)


@app.task(bind=True, name="documents.merge", ignore_result=True)
def merge(self: Any, document_id: str) -> None:
    """READY_TO_MERGE → MERGING → COMPLETED."""
    if merging.merge(get_context(), document_id, owner(self)):
        announce(document_id)


@app.task(name="documents.wake", ignore_result=True)
def wake() -> None:
    """Launch documents whose pages have waited long enough, and see to the next wake-up."""
    context = get_context()
    for document_id in recovery.due_pages(context):
        launch(document_id)
    wake_in(context, recovery.next_wait_s(context))


def wake_in(context: Context, wait_s: float | None) -> None:
    """See to it that the flow is woken in `wait_s` seconds."""
    try:
        if wait_s is not None and plan_wakeup(context.redis, FLOW, wait_s):
            wake.apply_async(countdown=max(0.0, wait_s) + 0.05)
    except (RedisError, OperationalError) as error:
        # The sweeper finds what is due.
        log.warning("wakeup.postponed", error=type(error).__name__)


def owner(task: Any, hop: str = "") -> Owner:
    """Who claims: this worker, for this delivery. The hop tells a lane's messages apart, which share one id.

    It is drawn anew for each message, not counted: where a message was delivered twice, both deliveries go on as lanes,
    and neither must take the other's work for that of a dead predecessor.
    """
    return Owner(identity.worker_id, f"{task.request.id}:{hop}")


def announce(document_id: str) -> None:
    """Publish how the document stands."""
    context = get_context()
    if not context.online:
        return
    try:
        view = queries.document(context, document_id)
    except UnknownDocument:
        return
    events.publish(
        context.redis, FLOW, "document", document=document_id, status=view.status.name, progress=view.progress,
        pages=view.pages, completed=view.completed_count, failed=view.failed_count,
    )  # fmt: skip

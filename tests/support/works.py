"""Units of every kind of work as rows, for tests of the promises that all of them share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert, update
from sqlalchemy.orm import Session

from pipeline.engine.transaction import Tx
from pipeline.engine.work import Work
from pipeline.flows import flows
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.flows.music.states import PipelineState
from pipeline.flows.screenshots.graph import nodes as graph_nodes
from pipeline.flows.screenshots.graph.models import Node, Thread
from pipeline.flows.screenshots.models import Batch, Shard
from pipeline.flows.screenshots.states import Step, WorkStatus
from pipeline.flows.screenshots.work import embedding
from pipeline.flows.webhooks.models import Delivery, Endpoint
from pipeline.storage.context import Context
from tests.support import knowledge, music
from tests.support.documents import insert_document


@dataclass(frozen=True)
class Units:
    """A scope with units that a worker can claim now. `done`: the columns of a completed unit."""

    scope: Any
    count: int
    done: dict[str, Any] = field(default_factory=dict)


Factory = Callable[[Context, int], Units]
"""Makes a scope with up to this many units. Units of some kinds are scopes of their own."""
FACTORIES: dict[str, Factory] = {}
"""By flow and kind: `documents.page`."""


def factory(name: str) -> Callable[[Factory], Factory]:
    """Register the factory for units of a kind."""

    def register(make: Factory) -> Factory:
        FACTORIES[name] = make
        return make

    return register


def works() -> dict[str, Work]:
    """Return every kind of work of every flow, by flow and kind."""
    return {f"{flow.name}.{work.name}": work for flow in flows() for work in flow.works}


@factory("documents.split")
def _split(context: Context, _: int) -> Units:
    return Units(insert_document(context, DocumentStatus.PENDING, []), 1, {"pages": 3, "attempts": 0})


@factory("documents.page")
def _pages(context: Context, count: int) -> Units:
    return Units(insert_document(context, pages=[PageStatus.PENDING] * count), count, {"content": "text"})


@factory("documents.merge")
def _merge(context: Context, _: int) -> Units:
    document_id = insert_document(context, DocumentStatus.READY_TO_MERGE, [PageStatus.COMPLETED])
    return Units(document_id, 1, {"merged_path": "report.md", "attempts": 0})


@factory("music.sync")
def _sync(context: Context, _count: int) -> Units:
    return Units(music.add_run(context, PipelineState.SYNCING), 1, {"synced": True})


@factory("music.batch")
def _batches(context: Context, count: int) -> Units:
    return Units(music.add_run(context, PipelineState.RUNNING, count), count)


def _screenshots(context: Context, shards: int, nodes: int = 0, thread: str | None = None) -> int:
    """Insert a batch under analysis with shards, and nodes of a thread. Returns the batch's id."""
    now = context.db.now()
    times = {"created_at": now, "updated_at": now}
    batch = {
        "correlation_id": "b",
        "source_key": "screen:1",
        "shot_ids": "[]",
        "ts_start": now,
        "ts_end": now,
        "idempotency_key": "b",
        "status": WorkStatus.RUNNING,
        "step": Step.ANALYSE,
        **times,
    }
    shard = {"shot_ids": "[]", "status": WorkStatus.PENDING, **times}
    node = {
        "kind": "event",
        "thread_id": thread,
        "title": "n",
        "event_time": now,
        "own": "{}",
        "status": WorkStatus.PENDING,
        **times,
    }

    def act(session: Tx) -> int:
        batch_id = int(session.execute(insert(Batch).values(**batch).returning(Batch.id)).scalar_one())
        for number in range(shards):
            session.execute(insert(Shard).values(batch_id=batch_id, number=number, **shard))
        if thread is not None:
            session.execute(insert(Thread).values(id=thread, first_at=now, last_at=now, created_at=now))
        for number in range(nodes):
            added = insert(Node).values(origin_key=str(number), **node).returning(Node.id)
            graph_nodes.want_vectors(session, [session.execute(added).scalar_one()])
        return batch_id

    return context.db.run(act)


@factory("screenshots.shard")
def _shards(context: Context, count: int) -> Units:
    return Units(_screenshots(context, count), count, {"result": "{}"})


@factory("screenshots.batch")
def _analysed(context: Context, _: int) -> Units:
    batch_id = _screenshots(context, 0)
    ready = update(Batch).values(status=WorkStatus.PENDING, step=Step.EXPAND)
    context.db.run(lambda session: session.execute(ready))
    return Units(batch_id, 1)


@factory("screenshots.merge")
def _merges(context: Context, count: int) -> Units:
    _screenshots(context, 0, count, "thread")
    return Units("thread", count)


@factory("webhooks.delivery")
def _deliveries(context: Context, count: int) -> Units:
    now = context.db.now()
    rows = [{"endpoint_id": "ep_1", "type": "document.completed", "created_at": now, "updated_at": now}] * count
    endpoint = {"id": "ep_1", "url": "http://127.0.0.1:9/", "secret": "whsec_AAAA", "cursor": 0}

    def act(session: Session) -> None:
        session.execute(insert(Endpoint).values(**endpoint, created_at=now, updated_at=now))
        session.execute(insert(Delivery), rows)

    context.db.run(act)
    return Units("ep_1", count, {"response_status": 204})


@factory("screenshots.vector")
def _vectors(context: Context, count: int) -> Units:
    _screenshots(context, 0, count)
    return Units(embedding.SCOPE, count)


@factory("knowledge.read")
def _unread(context: Context, _: int) -> Units:
    item_id = knowledge.add_item(context, knowledge.add_base(context), admitted_at=context.db.now())
    return Units(item_id, 1, {"attempts": 0, "batches": 1, "batches_left": 1})


@factory("knowledge.batch")
def _chunk_batches(context: Context, count: int) -> Units:
    base_id, now = knowledge.add_base(context), context.db.now()
    item_id = knowledge.add_item(context, base_id, ItemStatus.EMBEDDING, admitted_at=now)
    knowledge.add_batches(context, item_id, count)
    return Units(item_id, count, {"vectors": b"\0\0\0\0"})


@factory("knowledge.write")
def _unwritten(context: Context, _: int) -> Units:
    base_id, now = knowledge.add_base(context), context.db.now()
    item_id = knowledge.add_item(context, base_id, ItemStatus.EMBEDDING, admitted_at=now, batches=1)
    return Units(item_id, 1, {"attempts": 0, "batches": 0})

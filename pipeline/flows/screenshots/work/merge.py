"""Merging a node into an older one of its thread and kind: claimed, thought about, committed in one transaction.

The thread's row is the lock, and at most one merge of a (thread, kind) is claimed at a time, so merges into a target
are serial; the target's version says whether it is still the text that was thought about.
"""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, or_, select, update
from sqlalchemy.orm import Session, aliased

from pipeline.engine import claims, traces
from pipeline.engine.claims import FREE, Claim, Owner, held_by, is_due, new_claim
from pipeline.engine.errors import UnitError
from pipeline.engine.tables import insert_if_absent
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import EDGES, LINKS, MENTIONS, NODES, PROVENANCE, THREADS, Node
from pipeline.flows.screenshots.graph.nodes import Content
from pipeline.flows.screenshots.models import BATCHES
from pipeline.flows.screenshots.rules.node_merge import MergeNode
from pipeline.flows.screenshots.states import NODE, NodeKind, Origin, WorkEvent, WorkStatus
from pipeline.flows.screenshots.work import batch as working
from pipeline.flows.screenshots.work import outcome, retry
from pipeline.flows.screenshots.work.batch import UsedCall
from pipeline.flows.screenshots.work.outcome import Failed
from pipeline.storage.context import Context

CLAIM_TRIES = 3


@dataclass(frozen=True)
class MergeUnit:
    """A claimed node and its target. `target_id` None: the first of its kind in its thread, it stands for itself."""

    id: int
    attempts: int
    content: Content
    claim: Claim
    target_id: int | None
    target_version: int
    target: Content | None
    row: Any = field(repr=False)
    target_row: Any = field(default=None, repr=False)

    def nodes(self) -> tuple[MergeNode, MergeNode]:
        """(the target, the node), for whoever merges them."""
        assert self.target is not None, "the node stands for itself"
        return _as_node(self.target_row, self.target), _as_node(self.row, self.content)


def _as_node(row: Any, content: Content) -> MergeNode:
    return MergeNode(
        row.id, NodeKind(row.kind), row.thread_id or "", content.title, content.summary, content.keywords,
        content.entities, content.importance, content.confidence,
        event_time_ms=int(row.event_time.timestamp() * 1000),
        merged_from_ids=tuple(json.loads(row.merged_from_ids)),
    )  # fmt: skip


class Merged(StrEnum):
    """How a commit ended."""

    DONE = "done"
    LOST = "lost"
    """The claim had been taken away: nothing was changed."""
    AGAIN = "again"
    """The target has changed or gone meanwhile: the node waits for its merge again, without an attempt counted."""


def trace_unit(node_id: int) -> str:
    """What the traces of calls about a node's merge name it by."""
    return f"node {node_id}"


def lock_thread(session: Session, thread_id: str | None) -> None:
    """Lock a thread's merges until the transaction ends."""
    if thread_id is not None:
        session.execute(select(THREADS.c.id).where(THREADS.c.id == thread_id).with_for_update()).all()


def _has_target() -> ColumnElement[bool]:
    other = aliased(Node)
    fit = select(other.id).where(
        other.thread_id == NODES.c.thread_id, other.kind == NODES.c.kind, other.status == WorkStatus.SUCCEEDED,
        other.merged_into_id.is_(None), other.id != NODES.c.id,
    )  # fmt: skip
    return fit.exists()


def claim(context: Context, owner: Owner, *, alone: bool = False) -> MergeUnit | None:
    """The oldest node that waits for its merge and whose thread and kind has none under way; None if there is none.

    `alone`: only one that has nothing to be merged with, which needs nobody's thought. A message that comes again first
    gives back what its earlier delivery held in this worker, whose process has died.
    """
    _free_earlier(context, owner)
    busy = aliased(Node)
    under_way = (
        select(busy.id)
        .where(busy.thread_id == NODES.c.thread_id, busy.kind == NODES.c.kind, busy.status == WorkStatus.RUNNING)
        .exists()
    )

    def work(session: Session) -> MergeUnit | None:
        now = datetime.now(UTC)
        waits = NODES.c.status.in_(list(NODE.sources(WorkEvent.CLAIM)))
        which = [~_has_target()] if alone else []
        free = select(NODES.c.id, NODES.c.thread_id).where(waits, is_due(NODES, now), ~under_way, *which)
        found = session.execute(free.order_by(NODES.c.event_time, NODES.c.id).limit(1)).one_or_none()
        if found is None:
            return None
        lock_thread(session, found.thread_id)
        held = new_claim(owner, now, working.lease_s(context))
        # Looked at again: another may have begun with this thread while we waited for its lock.
        rows = claims.take(
            session, NODES, NODE, WorkEvent.CLAIM, NODES.c.id == found.id, ~under_way, claim=held,
            order_by=NODES.c.id, limit=1, now=now, updated_at=now,
        )  # fmt: skip
        return _unit(session, rows[0], held) if rows else None

    for _ in range(CLAIM_TRIES):
        unit = context.db.run(work)
        if unit is not None or alone or not waiting(context):
            break  # another may have taken the very node that we had found: there are more
    return unit


def _free_earlier(context: Context, owner: Owner) -> None:
    earlier = and_(
        NODES.c.claim_id.is_not(None), NODES.c.request_id == owner.request_id, NODES.c.worker_id == owner.worker_id
    )
    with context.db.read() as session:
        if session.execute(select(NODES.c.id).where(earlier).limit(1)).first() is None:
            return
    rules = retry.policy(context.settings.screenshots)
    # In a transaction of its own: everybody else locks a thread before its nodes.
    context.db.run(lambda session: outcome.free_lost(session, NODE, NODES, earlier, rules, datetime.now(UTC)))


def waiting(context: Context) -> int:
    """How many nodes wait for their merge now: `claim` may find nothing though some wait behind others."""
    with context.db.read() as session:
        now = datetime.now(UTC)
        waits = NODES.c.status.in_([WorkStatus.PENDING, WorkStatus.FAILED])
        return len(session.execute(select(NODES.c.id).where(waits, is_due(NODES, now)).limit(1000)).all())


def _unit(session: Session, row: Any, held: Claim) -> MergeUnit:
    target = _target(session, row)
    content = nodes.content_of(row)
    if target is None:
        return MergeUnit(row.id, row.attempts, content, held, None, 0, None, row)
    said = nodes.content_of(target)
    return MergeUnit(row.id, row.attempts, content, held, target.id, target.version, said, row, target)


def _target(session: Session, row: Any) -> Any | None:
    if row.thread_id is None:
        return None
    stands = and_(NODES.c.status == WorkStatus.SUCCEEDED, NODES.c.merged_into_id.is_(None), NODES.c.id != row.id)
    query = select(NODES).where(NODES.c.thread_id == row.thread_id, NODES.c.kind == row.kind, stands)
    return session.execute(query.order_by(NODES.c.event_time.desc(), NODES.c.id.desc()).limit(1)).one_or_none()


def commit(
    context: Context, unit: MergeUnit, merged: Content | None = None, call: UsedCall | None = None,
    trace: dict[str, Any] | None = None,
) -> Merged:  # fmt: skip
    """The merge is thought out: `merged` is what the target is to say, None where there is no target.

    `call`: the one whose answer it is; without, the rules have merged.
    """

    def work(session: Session) -> Merged:
        now = datetime.now(UTC)
        # What is noted of the merge names the batch: its row comes before the thread's, as for everybody.
        batch = select(BATCHES.c.id).where(BATCHES.c.id == unit.row.batch_id)
        session.execute(batch.with_for_update(read=True, key_share=True)).all()
        lock_thread(session, unit.row.thread_id)
        held = and_(NODES.c.id == unit.id, held_by(NODES, unit.claim))
        node = session.execute(select(NODES).where(held).with_for_update()).one_or_none()
        target = _target(session, node) if node is not None else None
        same = (target.id if target else None, target.version if target else 0) == (unit.target_id, unit.target_version)
        # Of nodes that have changed it may say what was deleted since.
        gone = node is None or not same
        traces.record(session, working.FLOW, unit.row.batch_id or "", trace_unit(unit.id), trace, gone=gone)
        if node is None:
            return Merged.LOST
        if not same:
            back = {"attempts": NODES.c.attempts - 1, "next_run_at": None, "updated_at": now}
            NODE.move(session, NODES, WorkEvent.GIVE_BACK, held, **FREE, **back)
            return Merged.AGAIN
        done = {**FREE, "error": None, "next_run_at": None, "updated_at": now}
        if target is None:
            NODE.move(session, NODES, WorkEvent.DONE, held, **done)
            return Merged.DONE
        assert merged is not None, "there is a target, so there is a merged text"
        _change_target(session, node, target, merged, now)
        _move_what_belongs(session, node.id, target.id)
        row = {
            "node_id": target.id, "act": "merged", "from_node_id": node.id, "batch_id": node.batch_id,
            "method": Origin.MODEL if call else Origin.RULES, "model": call.model[:120] if call else "",
            "created_at": now,
        }  # fmt: skip
        insert_if_absent(session, PROVENANCE, row, "node_id", "act", "from_node_id")
        if call is not None:
            working.record_used(session, call, now, node_id=target.id)
        NODE.move(session, NODES, WorkEvent.DONE, held, **done, merged_into_id=target.id, vector_status="none")
        nodes.unindex(session, [node.id])
        nodes.reindex(session, [target.id])
        return Merged.DONE

    return context.db.run(work)


def _change_target(session: Session, node: Any, target: Any, merged: Content, now: datetime) -> None:
    absorbed = {*json.loads(target.merged_from_ids), *json.loads(node.merged_from_ids), node.id}
    # The old vector stays until the new one is there: a node is never without one meanwhile.
    values = {
        **nodes.columns(merged), "merged_from_ids": json.dumps(sorted(absorbed - {target.id})),
        "version": target.version + 1, "vector_status": "waiting", "vector_error": None, "updated_at": now,
        "event_time": max(node.event_time, target.event_time),
    }  # fmt: skip
    mine = and_(NODES.c.id == target.id, NODES.c.version == target.version)
    session.execute(update(NODES).where(mine).values(**values))
    nodes.keep_entities(session, [merged.entities], now)
    nodes.mention(session, target.id, merged.entities)


def _move_what_belongs(session: Session, node_id: int, target_id: int) -> None:
    session.execute(update(LINKS).where(LINKS.c.node_id == node_id).values(node_id=target_id))
    session.execute(delete(MENTIONS).where(MENTIONS.c.node_id == node_id))
    mine = or_(EDGES.c.from_id == node_id, EDGES.c.to_id == node_id)
    for edge in session.execute(select(EDGES).where(mine)).all():
        ends = [target_id if end == node_id else end for end in (edge.from_id, edge.to_id)]
        if ends[0] != ends[1]:
            nodes.add_edge(session, ends[0], ends[1], edge.type)
    session.execute(delete(EDGES).where(mine))


def fail(context: Context, unit: MergeUnit, error: UnitError, trace: dict[str, Any] | None = None) -> Failed:
    """A merge ended in an error: the node waits, goes back, or is a dead letter that stands for itself."""

    def work(session: Session) -> Failed:
        now = datetime.now(UTC)
        lock_thread(session, unit.row.thread_id)
        traces.record(session, working.FLOW, unit.row.batch_id or "", trace_unit(unit.id), trace)
        rules = retry.policy(context.settings.screenshots)
        return outcome.fail(session, NODE, NODES, unit, unit.claim, error, rules, now)

    return context.db.run(work)
